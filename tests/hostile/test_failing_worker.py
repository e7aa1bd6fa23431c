"""Workers that die before they are ready, and models that cannot be: the server goes on, or says what is wrong."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from hostile.strangers import Stranger
from support.live import LiveServer

DIES = """
import os, sys
from pathlib import Path

if "chockstone.backends.worker.main" in sys.orig_argv and Path({file!r}).exists():
    os._exit(66)
"""


class FailingServer(LiveServer):
    """Whose workers die at once while the file ``bad`` is there."""

    def environment(self) -> dict[str, str]:
        told = super().environment()
        return {**told, "PYTHONPATH": f"{self.home}:{told.get('PYTHONPATH', '')}".rstrip(":")}


def test_workers_that_die_before_they_are_ready_do_not_end_the_server(models: dict[str, Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.touch()
    (tmp_path / "sitecustomize.py").write_text(DIES.format(file=str(bad)))
    with FailingServer(models, tmp_path) as server, server.http() as http:
        while (answer := http.get("readyz")).json()["status"] == "starting":
            assert answer.status_code == 503
            time.sleep(0.05)
        assert answer.status_code == 503
        assert answer.json()["status"] == "failing"
        assert "exit code 66" in answer.json()["detail"]
        assert "worker not ready attempts=3" in server.log()

        bad.unlink()

        assert Stranger.meet(http).loss() > 0
        assert http.get("readyz").json() == {"status": "ready"}


@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_model_whose_configuration_is_nested_too_deep_is_refused_in_words(
    models: dict[str, Path], tmp_path: Path, depth: int
) -> None:
    deep = tmp_path / "deep"
    shutil.copytree(models["tiny-qwen3"], deep)
    (deep / "config.json").write_text('{"model_type": "qwen3", "deep": ' + "[" * depth + "]" * depth + "}")
    server = LiveServer({"deep": deep}, tmp_path)

    assert server.launch().wait(60) == 2
    assert "nested more than 64 levels deep" in server.log()
    assert "Traceback" not in server.log()
