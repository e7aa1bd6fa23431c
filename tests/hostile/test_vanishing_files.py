"""Files that are deleted under a running server: it stops, says why, and has lost nothing that it acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.live import LiveServer
from support.postgres import IS_POSTGRES


def test_a_server_whose_lock_was_deleted_stops(models: dict[str, Path], tmp_path: Path) -> None:
    with LiveServer(models, tmp_path) as server:
        (server.data / "lock").unlink()

        assert server.wait() == 1
        assert "the lock of the data directory" in server.log()
        assert "Traceback" not in server.log()


@pytest.mark.skipif(IS_POSTGRES, reason="the catalog is no file")
@pytest.mark.parametrize("lost", ["catalog.sqlite3", "catalog.sqlite3-wal"])
def test_a_server_whose_catalog_was_deleted_stops_and_saves_it(
    models: dict[str, Path], tmp_path: Path, lost: str
) -> None:
    with LiveServer(models, tmp_path) as server:
        with server.http() as http:
            session_id = http.post("create_session", json={"sdk_version": "0.36.0"}).json()["session_id"]

        (server.data / lost).unlink()

        assert server.wait() == 1
        assert f"{lost}' of the catalog was deleted or replaced" in server.log()
        assert "Traceback" not in server.log()
        if not lost.endswith("-wal"):
            [saved] = server.data.glob("catalog.sqlite3.saved-*")
            for stale in (server.data / "catalog.sqlite3-wal", server.data / "catalog.sqlite3-shm"):
                stale.unlink(missing_ok=True)
            saved.rename(server.data / "catalog.sqlite3")

        server.start()
        with server.http() as http:
            assert http.get(f"sessions/{session_id}").status_code == 200
