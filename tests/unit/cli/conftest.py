"""Fixtures of the command line: a store, a served loopback, a terminal, a server that only notes its settings."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from support.cli.store_commands import PROGRAM, fill

if TYPE_CHECKING:
    from chockstone.api.config import ServerConfig
    from support.cli.loopback import Loopback
    from support.trainers.fakes import FakeServer


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """An empty directory to stand in, a model `tiny`, and a server that only notes what it is told."""
    pytest.importorskip("fastapi")
    from huggingface_hub import constants

    from chockstone.api.serving import startup  # late: a plain install has no server

    seen: list[ServerConfig] = []

    def run_server(
        config: ServerConfig, _: object, *, announce: Callable[[int, list[str]], None], make_console: object
    ) -> int:
        seen.append(config)
        announce(4321, list(config.keys))
        return 0

    for variable in [name for name in os.environ if name.startswith("CHOCKSTONE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr(startup, "claimed", lambda _: nullcontext())
    monkeypatch.setattr(startup, "prepared", lambda *_: nullcontext())
    monkeypatch.setitem(sys.modules, "chockstone.api.serving.server", SimpleNamespace(run=run_server))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text('{"model_type": "llama"}')
    return seen


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    fill(root)
    return root


@pytest.fixture
def in_terminal() -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs the program with a terminal on all three streams; returns exit code and what was shown."""
    main, other = pty.openpty()

    def run_it(*words: str | Path, typed: str = "") -> tuple[int, str]:
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
        command = [*PROGRAM, "checkpoints", *map(str, words)]
        process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment)
        os.write(main, typed.encode())
        code = process.wait(timeout=60)
        return code, os.read(main, 65536).decode()

    yield run_it
    os.close(main)
    os.close(other)


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Loopback]:
    pytest.importorskip("fastapi")
    from chockstone.engine.config import StorageRules  # late: a plain install has no server
    from support.cli.loopback import serve_on_loopback

    with serve_on_loopback(tmp_path / "home", rules=StorageRules(trash_seconds=3600)) as loopback:
        yield loopback


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """In an empty directory, beside an environment ``digits:make``, with a server in memory."""
    from chockstone.cli.training import run as train_run  # late: the SDK takes long to import
    from support.cli.training import OWN, FakeTrainingServer, Task
    from support.trainers.fakes import FakeServer

    OWN.clear()
    fake = FakeServer()
    fake.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(train_run, "TrainingServer", FakeTrainingServer)
    monkeypatch.setitem(sys.modules, "digits", SimpleNamespace(make=Task))
    return fake
