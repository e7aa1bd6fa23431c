from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chockstone.api.context import Context
from chockstone.engine.config import StorageRules
from chockstone.engine.ownership.data_directory import ARCHIVES
from support.api.users import KEYS, MODEL, User, users_of
from support.engine.gap_meter import ScriptedGapMeter
from support.served import Served, serve_in_process


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"architectures": ["Tiny"], "max_position_embeddings": 128}))
    return {MODEL: directory}


@pytest.fixture
def rules() -> StorageRules:
    return StorageRules(reserve_bytes=0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where archives lie, as ``<archive>.tar``."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home" / ARCHIVES


@pytest.fixture
def replicas() -> int:
    return 1


@pytest.fixture
def gap_meter() -> ScriptedGapMeter | None:
    """None: no vLLM server samples."""
    return None


@pytest.fixture
async def served(
    store: Path, models: dict[str, Path], rules: StorageRules, replicas: int, gap_meter: ScriptedGapMeter | None
) -> AsyncIterator[Served]:
    """With keys for three users, of whom ``root`` is an admin."""
    async with serve_in_process(
        store.parent, models, rules=rules, keys=KEYS, admins=frozenset({"root"}), replicas=replicas, gap_meter=gap_meter
    ) as served:
        yield served


@pytest.fixture
def context(served: Served) -> Context:
    context: Context = served.app.state.context
    return context


@pytest.fixture
async def users(served: Served) -> AsyncIterator[dict[str, User]]:
    async with users_of(served.app) as made:
        yield made


@pytest.fixture
def ann(users: dict[str, User]) -> User:
    return users["ann"]


@pytest.fixture
def bob(users: dict[str, User]) -> User:
    return users["bob"]


@pytest.fixture
def root(users: dict[str, User]) -> User:
    return users["root"]
