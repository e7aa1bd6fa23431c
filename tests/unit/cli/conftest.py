from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from chockstone.api.config import ServerConfig
from chockstone.api.serving import preparing


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """An empty directory to stand in, a model `tiny`, and a server that only notes what it is told."""
    seen: list[ServerConfig] = []

    def run_server(config: ServerConfig, _: object, *, announce: Callable[[int, list[str]], None]) -> int:
        seen.append(config)
        announce(4321, list(config.keys))
        return 0

    for variable in [name for name in os.environ if name.startswith("CHOCKSTONE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr(preparing, "prepared", lambda _: nullcontext())
    monkeypatch.setitem(sys.modules, "chockstone.api.serving.server", SimpleNamespace(run=run_server))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text('{"model_type": "llama"}')
    return seen
