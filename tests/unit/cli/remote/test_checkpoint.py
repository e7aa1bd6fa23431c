from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from chockstone.cli.remote.checkpoint import ListedCheckpoint

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def entry(**facts: Any) -> dict[str, Any]:
    known = {"tinker_path": "tinker://r/weights/a", "checkpoint_id": "weights/a", "time": "2026-01-01T00:00:00+00:00"}
    return {**known, **facts}


def test_an_entry_without_a_state_is_good() -> None:
    listed = ListedCheckpoint.of(entry(size_bytes=None))

    assert (listed.kind, listed.size_bytes, listed.damage) == ("weights", 0, None)
    assert (listed.age(NOW), listed.state(NOW)) == ("24 h", "ok")


def test_state_names_damage_publication_and_expiry() -> None:
    facts = {"state": "damaged", "damage": "a \x1b digest", "public": True, "expires_at": "2026-01-02T01:00:00+00:00"}

    listed = ListedCheckpoint.of(entry(**facts))

    assert listed.state(NOW) == "damaged: a \\x1b digest, public, expires in 60 min"
