"""A data directory as a server leaves it, for the doctor: real archives, a real catalog, and ways to hurt both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from chockstone.backends.run_spec import RunSpec
from chockstone.catalog import Catalog, CheckpointRow
from chockstone.checkpoints import Archive, Checkpointer, load_state
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.engine.doctor.examination import examine
from chockstone.engine.doctor.findings import Examination
from chockstone.engine.doctor.repairs import AllowedRepairs
from chockstone.engine.doctor.visit import Visit, look, repair
from chockstone.engine.journal.journal import Journal, JournalWriter
from chockstone.engine.ownership.data_directory import RUN_JOURNALS
from chockstone.engine.storage.archive_names import archive_name, recovery_folder
from support.postgres import database_for, shared_postgres

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SPEC = RunSpec(rank=8, seed=1).to_json()
RUN = "s:train:0"


@dataclass
class DamagedDataDir:
    data: Path
    url: str | None = None  # of its catalog, if that is not in the data
    store: FileStore = field(init=False)

    def __post_init__(self) -> None:
        self.data.mkdir(exist_ok=True)
        self.store = FileStore(self.data / "checkpoints")
        self.store.root.mkdir(exist_ok=True)
        self.url = self.url or database_for(self.data)

    @property
    def database(self) -> Path:
        return self.data / "catalog.sqlite3"

    @asynccontextmanager
    async def catalog(self) -> AsyncIterator[Catalog]:
        async with await Catalog.open(self.url or f"sqlite:///{self.database}") as catalog:
            yield catalog

    def lose_catalog(self) -> None:
        if self.url is not None:
            shared_postgres().empty(self.url)
        self.database.unlink(missing_ok=True)

    async def has_catalog(self) -> bool:
        return await Catalog.exists(self.url or f"sqlite:///{self.database}")

    def archive(
        self, archive: str, value: float = 1.0, *, at: datetime = NOON, kind: str = "weights", **metadata: Any
    ) -> int:
        """Write one, described by ``metadata``; its size."""
        with Checkpointer(self.store, now=lambda: at) as checkpointer:
            state = {"model": {"w": np.full(1000, value, dtype=np.float32)}}
            saved = checkpointer.save(state, name=archive, kind=kind, step=int(value), metadata=metadata).result()
        return saved.size_bytes

    def recovery(self, run_id: str = RUN, through: int = 7) -> str:
        """An archive to bring the run back with; its name."""
        archive = f"{recovery_folder(run_id)}/{through:016d}.0a1b"
        self.archive(archive, kind="recovery", run_id=run_id, through=through)
        return archive

    def journal(self, run_id: str = RUN, content: bytes = b"operations") -> Path:
        directory = self.data / RUN_JOURNALS / run_id.replace(":", ".")
        directory.mkdir(parents=True)
        (directory / f"{1:016d}.journal").write_bytes(content)
        return directory

    def described(
        self, name: str, value: float = 1.0, *, run_id: str = RUN, seq_id: int = 1, owner: str = "ann", **facts: Any
    ) -> str:
        """An archive as the server writes it; its name."""
        archive = archive_name(run_id, "weights", name, seq_id)
        self.archive(archive, value, **{**described(name, run_id=run_id, owner=owner), **facts})
        return archive

    async def begun(self, name: str, *, archive: str, **facts: Any) -> CheckpointRow:
        async with self.catalog() as catalog:
            await _make_run(catalog)
            return await catalog.checkpoint_saves.begin(
                RUN, "weights", name, archive=archive, owner="ann", base_model="tiny", spec=SPEC, now=NOON, **facts
            )

    async def saved(
        self, name: str, value: float = 1.0, *, seq_id: int = 1, is_sealed: bool = True, **facts: Any
    ) -> CheckpointRow:
        """A checkpoint like any other; one of before has no seal in its row."""
        archive = self.described(name, value, seq_id=seq_id)
        save = await self.begun(name, archive=archive, **facts)
        async with self.catalog() as catalog:
            with Archive(self.store.open(archive)) as opened:
                size_bytes, seal = opened.size, opened.seal if is_sealed else None
            return (await catalog.checkpoint_saves.commit(save, size_bytes=size_bytes, seal=seal, now=NOON)).checkpoint

    async def discarded(self, row: CheckpointRow, *, purge_at: datetime = NOON) -> None:
        async with self.catalog() as catalog:
            await catalog.checkpoints.discard([row], reason="deleted", now=NOON, purge_at=purge_at)

    async def rows(self) -> dict[str, CheckpointRow]:
        async with self.catalog() as catalog:
            return {row.name: row async for row in catalog.checkpoints.iterate()}

    async def examined(self, **facts: Any) -> Examination:
        async with self.catalog() as catalog:
            return await examine(catalog, self.store, journals=self.data / RUN_JOURNALS, **{"now": NOON, **facts})

    async def found(self, **facts: Any) -> list[tuple[str, str]]:
        """What the doctor finds wrong: kinds and subjects."""
        return [(each.kind.value, each.subject) for each in (await self.examined(**facts)).problems]

    async def looked_at(self, *, is_full: bool = False) -> Visit:
        return await look(self.data, now=NOON, is_full=is_full, progress=silent, database_url=self.url)

    async def treated(
        self, allowed: AllowedRepairs | None = None, *, is_full: bool = False, at: datetime = NOON
    ) -> Visit:
        return await repair(
            self.data, allowed or AllowedRepairs(), now=at, is_full=is_full, progress=silent, database_url=self.url
        )

    def file(self, archive: str) -> Path:
        return self.store.path(archive)

    def swap(self, one: str, other: str) -> None:
        """Each in the place of the other."""
        first, second = self.file(one), self.file(other)
        content = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)

    def flip(self, archive: str) -> None:
        """Change one bit of its tensors."""
        path = self.file(archive)
        content = bytearray(path.read_bytes())
        content[content.index(b"\0\0\x80?") + 2] ^= 1
        path.write_bytes(content)

    def behead(self, archive: str) -> None:
        path = self.file(archive)
        path.write_bytes(path.read_bytes()[:-4096])

    def value(self, archive: str) -> float:
        """What is in there, every digest checked."""
        with Archive(self.store.open(archive)) as opened:
            return float(load_state(opened)["model"]["w"][0])

    def files(self) -> dict[str, bytes]:
        """Everything on the disk, to the bit; the database's own side files come and go."""
        root = self.data
        paths = (
            path for path in sorted(root.rglob("*")) if path.is_file() and not path.name.endswith(("-shm", "-wal"))
        )
        return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def described(name: str, *, run_id: str = RUN, owner: str = "ann") -> Mapping[str, Any]:
    return {
        "path": f"tinker://{run_id}/weights/{name}",
        "owner": owner,
        "base_model": "tiny",
        "spec": SPEC,
        "optimizer_config": {"type": "adamw"},
        "user_metadata": {"loss": "1.5"},
    }


async def write_journal(directory: Path, *heads: Mapping[str, Any]) -> None:
    writer = JournalWriter(synced=False)
    journal = await Journal.open(directory, writer)
    for head in heads:
        await journal.append(head, b"body").durable
    await journal.close()
    await writer.close()


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


async def _make_run(catalog: Catalog) -> None:
    if not await catalog.sessions.list("ann", limit=1):
        await catalog.sessions.create("s", owner="ann", sdk_version="0.36.0", now=NOON)
        await catalog.runs.create("s", 0, owner="ann", base_model="tiny", spec=SPEC, now=NOON)


def silent(_label: str, _size_bytes: int) -> Any:
    return nullcontext(lambda _: None)
