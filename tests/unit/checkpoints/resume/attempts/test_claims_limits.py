"""Claims and generations at the limits of their numbers and sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Resume
from chockstone.checkpoints.errors import InvalidName
from chockstone.checkpoints.resume.attempts.claims import Claim, Generation, claim_record
from chockstone.checkpoints.resume.attempts.places import MAX_RECORD_BYTES


def _state() -> dict[str, object]:
    return {"w": np.zeros(4)}


def test_a_number_past_the_last_is_refused_before_anything_is_saved_under_it(tmp_path: Path) -> None:
    folder = tmp_path / "run/attempt-00000.ckpt"
    folder.mkdir(parents=True)
    (folder / "999999999999-0001.tar").write_bytes(b"stray")
    resume = Resume(tmp_path / "run", attempt=0)
    resume.acknowledge_fresh_start()
    with pytest.raises(InvalidName, match="past the last generation"):
        resume.save(_state())
    assert not list(folder.glob("1*.tar"))


def test_names_that_a_listing_would_not_show_are_refused() -> None:
    assert claim_record(999_999_999) == "claims/999999999.json"
    with pytest.raises(InvalidName, match="past the last claim"):
        claim_record(1_000_000_000)
    with pytest.raises(InvalidName, match="past the last generation"):
        _ = Generation(1, 1_000_000_000).name


def test_a_claim_with_long_places_stays_one_that_can_be_read() -> None:
    given = tuple(f"s3://bucket/{'é' * 300}/{number}" for number in range(1000))
    claim = Claim("claim", "s3://bucket/run", 1, "nonce", {"chain": "run"}, given, given[::2])
    content = claim.encode()
    assert len(content) <= MAX_RECORD_BYTES
    decoded = Claim.decode(content, what="it")
    assert decoded.given
    assert decoded.given == given[: len(decoded.given)]
    assert decoded.foreign == decoded.given[::2]
