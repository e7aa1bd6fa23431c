"""``chockstone serve --engine``: what it is told, and what it refuses to be told."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from chockstone.api.config import ServerConfig
from chockstone.cli.app import app

ENGINE = "http://engine:8000"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["serve", f"--engine={ENGINE}", *words], catch_exceptions=False)


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """An empty directory to stand in, and an API replica that only records its configuration."""
    seen: list[ServerConfig] = []

    def run_replica(config: ServerConfig, engine: str, *, announce: Callable[[int, list[str]], None]) -> int:
        assert engine == ENGINE
        seen.append(config)
        announce(4321, list(config.keys))
        return 0

    for variable in [name for name in os.environ if name.startswith("CHOCKSTONE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setitem(sys.modules, "chockstone.api.replica.server", SimpleNamespace(run=run_replica))
    monkeypatch.chdir(tmp_path)
    return seen


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"--database=sqlite:///{tmp_path}/catalog.sqlite3"


def test_a_front_needs_neither_model_nor_data(started: list[ServerConfig], database: str, tmp_path: Path) -> None:
    result = run(database, "--port=0")

    assert result.exit_code == 0, result.output
    assert f"is an API replica of {ENGINE}" in result.stdout
    assert "export TINKER_BASE_URL=http://127.0.0.1:4321" in result.stdout
    assert started[0].database_url == database.removeprefix("--database=")
    assert list(tmp_path.iterdir()) == []


def test_a_front_must_know_the_catalog(started: list[ServerConfig]) -> None:
    result = run()

    assert result.exit_code == 2
    assert "--database" in result.output
    assert started == []


@pytest.mark.parametrize("flag", ["--model=./tiny", "--data=./data", "--max-runs=3", "--trash=7d", "--admin=ann"])
def test_what_is_the_engines_to_know_is_refused(started: list[ServerConfig], database: str, flag: str) -> None:
    result = run(database, flag)

    assert result.exit_code == 2
    assert flag.partition("=")[0] in result.output
    assert ENGINE in result.output
    assert started == []


def test_a_file_may_be_shared_with_the_engine(started: list[ServerConfig], database: str, tmp_path: Path) -> None:
    (tmp_path / "chockstone.toml").write_text('max_runs = 3\n[models]\ntiny = "./tiny"\n')

    assert run(database).exit_code == 0
    assert len(started) == 1


def test_a_front_that_others_can_reach_needs_keys(started: list[ServerConfig], database: str) -> None:
    result = run(database, "--host=0.0.0.0")

    assert result.exit_code == 2
    assert "no keys" in result.output
    assert run(database, "--host=0.0.0.0", "--key=ann=tml-0123456789").exit_code == 0
    assert [config.keys for config in started] == [{"ann": "tml-0123456789"}]


def test_what_is_not_installed_is_named(
    started: list[ServerConfig], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "chockstone.api.replica.server")
    for name in [name for name in sys.modules if name.startswith("chockstone.api.replica")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)

    result = run(database)

    assert result.exit_code == 2
    assert "pip install 'chockstone[replica]'" in result.output
