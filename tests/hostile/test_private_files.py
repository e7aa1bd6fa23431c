"""Other users of the machine: what a server keeps is not theirs to read."""

from __future__ import annotations

import stat
from pathlib import Path

from hostile.strangers import Stranger, retrieve
from support.live import LiveServer


def test_what_a_server_keeps_is_its_users_alone(live: LiveServer) -> None:
    with live.http() as http:
        stranger = Stranger.meet(http)
        order = {"model_id": stranger.run_id, "path": "kept", "seq_id": stranger.next_seq_id()}
        assert "path" in retrieve(http, http.post("save_weights", json=order).json()["request_id"]).json()

    modes: dict[Path, int] = {}
    for path in [live.data, *live.data.rglob("*")]:
        try:
            modes[path] = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:  # it was removed a moment ago
            continue

    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}
    assert any(path.name.endswith(".tar") for path in modes) == (live.place is None)
