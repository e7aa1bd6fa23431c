"""Filling: makes many checkpoints on a server without saving each.

One is registered in the catalog as a rebuild does it and its row repeated; its archive is linked as often,
as copies are. That is quicker than ten thousand saves, and to the server it is the same.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.lifecycle.setup import Setup
from chockstone.catalog import Catalog, CheckpointRow
from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.stores.file_store import FileStore

OWNER = "local"
PER_RUN = 500


def fill(setup: Setup, count: int, *, session_id: str) -> list[str]:
    """Make ``count`` checkpoints in runs of a new session; returns their paths, the oldest first."""
    store = FileStore(setup.server.checkpoints)
    archives = [f"{session_id}.train.{number // PER_RUN}/weights/step-{number}" for number in range(count)]
    original = write_archive(setup, 1_000, name=archives[0])
    for archive in archives[1:]:
        path = store.path(archive)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(original, path)
    runs = -(-count // PER_RUN)
    row = asyncio.run(_enter(setup, session_id, archives[0], runs=runs, size_bytes=original.stat().st_size))
    _repeat(setup, row, archives[1:], session_id=session_id)
    return [f"tinker://{session_id}:train:{number // PER_RUN}/weights/step-{number}" for number in range(count)]


def enter_archive(setup: Setup, archive: str, *, session_id: str) -> str:
    """Enter an archive of the store into the catalog; returns the path of the checkpoint."""
    size_bytes = FileStore(setup.server.checkpoints).stat(archive).size
    return asyncio.run(_enter(setup, session_id, archive, runs=1, size_bytes=size_bytes)).path


def write_archive(setup: Setup, size_bytes: int, *, name: str) -> Path:
    """Save one tensor of random bytes with the library; returns the file."""
    store = FileStore(setup.server.checkpoints)
    tensor = np.frombuffer(np.random.default_rng(0).bytes(size_bytes), dtype=np.uint8)
    with Checkpointer(store) as checkpointer:
        checkpointer.save({"model": {"w": tensor}}, name=name).result()
    return store.path(name)


async def _enter(setup: Setup, session_id: str, archive: str, *, runs: int, size_bytes: int) -> CheckpointRow:
    """Create a session with ``runs`` runs, and a checkpoint in the first of them."""
    now = datetime.now(UTC)
    base_model = next(iter(setup.models.values())).name
    spec = {"rank": 8, "seed": 0}
    async with await Catalog.open(f"sqlite:///{_database(setup)}") as catalog:
        await catalog.sessions.create(session_id, owner=OWNER, sdk_version="0.36.0", now=now)
        for number in range(runs):
            await catalog.runs.create(session_id, number, owner=OWNER, base_model=base_model, spec=spec, now=now)
        return await catalog.checkpoint_saves.register(
            run_id=f"{session_id}:train:0",
            kind="weights",
            name="step-0",
            owner=OWNER,
            archive=archive,
            base_model=base_model,
            spec=spec,
            created_at=now,
            size_bytes=size_bytes,
            user_metadata={"loss": "0.1234"},
            step=0,
        )


def _repeat(setup: Setup, row: CheckpointRow, archives: Sequence[str], *, session_id: str) -> None:
    """Insert a copy of this row for each archive, in one transaction."""
    with closing(sqlite3.connect(_database(setup), timeout=60)) as database, database:
        database.row_factory = sqlite3.Row
        [known] = database.execute("SELECT * FROM checkpoints WHERE save_id = ?", (row.save_id,)).fetchall()
        columns = [column for column in known.keys() if column != "save_id"]  # noqa: SIM118  # a Row iterates values
        insertion = f"INSERT INTO checkpoints ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        places = {column: index for index, column in enumerate(columns)}
        for number, archive in enumerate(archives, start=1):
            values = [known[column] for column in columns]
            values[places["run_id"]] = f"{session_id}:train:{number // PER_RUN}"
            values[places["name"]] = f"step-{number}"
            values[places["archive"]] = archive
            values[places["step"]] = number
            database.execute(insertion, values)


def _database(setup: Setup) -> Path:
    return setup.server.data / "catalog.sqlite3"
