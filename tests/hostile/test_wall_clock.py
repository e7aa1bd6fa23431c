"""A wall clock that is set to another time deletes nothing."""

from __future__ import annotations

import time
from pathlib import Path

from hostile.strangers import Stranger, retrieve
from support.live import LiveServer

CLOCK = Path(__file__).parents[1] / "faults" / "shifted_clock"


class ShiftedServer(LiveServer):
    """Whose wall clock is off by what the file ``shift`` says."""

    @property
    def shift(self) -> Path:
        return self.home / "shift"

    def environment(self) -> dict[str, str]:
        told = super().environment()
        path = f"{CLOCK}:{told.get('PYTHONPATH', '')}".rstrip(":")
        return {**told, "CLOCK_SHIFT": str(self.shift), "PYTHONPATH": path}


def test_a_clock_that_jumps_deletes_nothing_until_the_time_is_confirmed(
    models: dict[str, Path], tmp_path: Path
) -> None:
    server = ShiftedServer(models, tmp_path, "--checkpoint-ttl=10d")
    server.shift.write_text("0")
    with server, server.http() as http:
        stranger = Stranger.meet(http)
        for name in ("older", "newer"):
            order = {"model_id": stranger.run_id, "path": name, "seq_id": stranger.next_seq_id(), "ttl_seconds": 86400}
            assert "path" in retrieve(http, http.post("save_weights", json=order).json()["request_id"]).json()

        server.shift.write_text(str(40 * 86400))
        swept = http.post("sweep", json={"dry_run": False}).json()

        assert swept["removed"] == []
        assert len(http.get(f"training_runs/{stranger.run_id}/checkpoints").json()["checkpoints"]) == 2
        assert "the wall clock jumped by +40 days" in server.log()

        (server.data / "clock-confirmed").touch()
        while (server.data / "clock-confirmed").exists():
            time.sleep(0.05)
        assert http.post("sweep", json={"dry_run": False}).status_code == 200
        assert http.get(f"training_runs/{stranger.run_id}/checkpoints").json()["checkpoints"] == []
