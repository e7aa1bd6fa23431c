from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chockstone.cli.settings.values import ModelSetting
from chockstone.cli.training.server import TrainingServer, TrainingServerFailed


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho no model $3 >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    with pytest.raises(TrainingServerFailed, match="did not start.*\nno model [0-9]+$"):
        TrainingServer(ModelSetting("tiny", tmp_path), tmp_path / "home", threads=1).__enter__()


def test_a_server_is_revived_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho TINKER_BASE_URL=http://127.0.0.1:7\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    with TrainingServer(ModelSetting("tiny", tmp_path), tmp_path / "home", threads=1) as own:
        assert own.url == "http://127.0.0.1:7"
        assert own.revive() is None
        for _ in range(5):
            own.kill()
            assert own.revive() == "the server died with -9 and was restarted; training continues when it answers"
        own.kill()
        with pytest.raises(TrainingServerFailed, match="the server died 6 times, the last time with -9"):
            own.revive()
