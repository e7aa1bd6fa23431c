from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from chockstone.api.context import Context
from chockstone.api.tokenizers.tokenizer_service import TokenizerService
from chockstone.console import app as console_app
from support.api.users import KEYS, MODEL, User, users_of
from support.engine.gap_meter import ScriptedGapMeter
from support.page_visitor import PageVisitor
from support.served import Served, serve_in_process


@pytest.fixture(autouse=True)
def tokenizers(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenizerService]:
    """The tokenizers of each console, whose child process ends with the test."""
    made = TokenizerService()
    monkeypatch.setattr(console_app, "TokenizerService", lambda: made)
    yield made
    made.close()


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"architectures": ["Tiny"], "max_position_embeddings": 1024}))
    return {MODEL: directory}


@pytest.fixture
def replicas() -> int:
    return 1


@pytest.fixture
def gap_meter() -> ScriptedGapMeter | None:
    """None: no vLLM server samples."""
    return None


@pytest.fixture
async def served(
    tmp_path: Path, models: dict[str, Path], replicas: int, gap_meter: ScriptedGapMeter | None
) -> AsyncIterator[Served]:
    """With keys for three users, of whom ``root`` is an admin."""
    home = tmp_path / "home"
    home.mkdir()
    async with serve_in_process(
        home, models, keys=KEYS, admins=frozenset({"root"}), replicas=replicas, gap_meter=gap_meter
    ) as served:
        yield served


@pytest.fixture
async def open_server(tmp_path: Path, models: dict[str, Path]) -> AsyncIterator[Served]:
    """Without keys."""
    home = tmp_path / "home"
    home.mkdir()
    async with serve_in_process(home, models) as served:
        yield served


@pytest.fixture
def context(served: Served) -> Context:
    context: Context = served.app.state.context
    return context


@pytest.fixture
async def users(served: Served) -> AsyncIterator[dict[str, User]]:
    """Scripts of each user, which train."""
    async with users_of(served.app) as made:
        yield made


@pytest.fixture
async def visitor(served: Served) -> AsyncIterator[PageVisitor]:
    """Not signed in."""
    async with PageVisitor(served.app) as visitor:
        yield visitor


@pytest.fixture
async def ann(served: Served) -> AsyncIterator[PageVisitor]:
    """Signed in, no admin."""
    async with PageVisitor(served.app) as visitor:
        await visitor.sign_in(KEYS["ann"])
        yield visitor


@pytest.fixture
async def root(served: Served) -> AsyncIterator[PageVisitor]:
    """Signed in, an admin."""
    async with PageVisitor(served.app) as visitor:
        await visitor.sign_in(KEYS["root"])
        yield visitor
