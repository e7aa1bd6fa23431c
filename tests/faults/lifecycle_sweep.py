"""Kills a server at every step of an operation and looks at what is left. A script of test_lifecycle_crashes.py.

Steps are those of crash_harness.py. The engine, the catalog and the store are the real ones; only the worker is a fake,
which writes real archives. For each number n a child does the operation and is killed before its n-th step, until one
child completes it. Each time the parent recovers, once by a start of the server and the doctor, once by the doctor
alone, and then checks everything.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from chockstone.catalog import Catalog, CheckpointRow
from chockstone.checkpoints import Archive, Retention, Store, load_state, verify_archive
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.engine.config import StorageRules
from chockstone.engine.doctor.examination import examine
from chockstone.engine.doctor.repairs import AllowedRepairs
from chockstone.engine.doctor.visit import look, repair
from chockstone.engine.engine import Engine
from chockstone.engine.ownership.data_directory import RUN_JOURNALS
from chockstone.engine.runs.commands import Save
from chockstone.engine.runs.run import Run
from chockstone.engine.storage.archive_names import recovered_run
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.wire.paths import Kind, TinkerPath
from faults.crash_harness import (
    BUCKET,
    RUN,
    SESSION,
    Say,
    StepKiller,
    give_prefix,
    in_child,
    make_data,
    open_run,
    prepare_imports,
    store_of,
    store_url,
)
from support.engine.damaged_data_dirs import silent
from support.engine.fake_backend import FakeBackend

DAY = 24 * 3600.0
MOST_STEPS = 200
CALLS = ("link", "unlink", "replace", "rename", "mkdir", "rmdir", "pwrite", "posix_fallocate", "fsync")
# Never a row without bytes, damage, or a stuck save.
HARMLESS_BEFORE_A_FIX = {"partial", "orphan", "ephemeral", "recovery", "journal"}


@dataclass(frozen=True)
class World:
    """What users can see: weights by name, of what is listed and of what is in the trash."""

    listed: dict[str, int]
    trash: dict[str, int] = field(default_factory=dict)


@dataclass
class Server:
    """A server of which only the worker is not real."""

    engine: Engine
    clock: Clock
    live: Run | None = None
    seq_id: int = 0

    async def result(self, request_id: str) -> Any:
        promise = self.engine.futures.get(request_id)
        assert promise is not None
        result = await promise.wait(60)
        assert result is not None, "no result in time"
        return orjson.loads(result.body) if result.body.startswith(b"{") else result.body

    async def open_run(self) -> None:
        catalog = self.engine.catalog
        await catalog.sessions.create(SESSION, owner="ann", sdk_version="0.36.0", now=self.clock())
        opening = await open_run(self.engine)
        assert "error" not in await self.result(opening)
        self.live = self.engine.runs.get(RUN)

    async def come_back(self) -> None:
        """Until what an earlier server was asked is done, and it is known what no run needs any more."""
        while not self.engine.runs.are_all_woken:
            await asyncio.sleep(0.001)
        for live in self.engine.runs:
            await live.lane.drained()

    def next_seq_id(self) -> int:
        self.seq_id += 1
        return self.seq_id

    async def save(self, name: str, **facts: Any) -> CheckpointRow:
        """Train a step, and save: the n-th save holds weight n."""
        assert self.live is not None
        training = self.engine.training
        await self.result(await training.forward_backward(self.live, self.next_seq_id(), b"1"))
        await self.result(await training.optim_step(self.live, self.next_seq_id(), {}))
        path = TinkerPath.of(RUN, Kind.WEIGHTS, name)
        told = await self.result(await training.save(self.live, self.next_seq_id(), Save(path, **facts)))
        assert "error" not in told, told
        return await self.row(name)

    async def row(self, name: str) -> CheckpointRow:
        return await self.engine.catalog.checkpoints.get(RUN, "weights", name, now=self.clock())

    async def delete(self, *names: str) -> None:
        await self.engine.checkpoints.delete([await self.row(name) for name in names], by="ann")


@dataclass
class Clock:
    at: datetime = datetime(2030, 1, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@dataclass(frozen=True)
class Scenario:
    prepare: Callable[[Server], Awaitable[object]]
    act: Callable[[Server], Awaitable[object]]
    before: World
    after: World
    trash_seconds: float = 0.0
    retention: Retention = field(default_factory=Retention)
    elapsed_seconds: float = 0.0  # by the clock, until the recovery
    hurt: Callable[[Path], None] | None = None  # once the server has ended; then the doctor acts
    may_create: bool = False

    @property
    def allowed(self) -> AllowedRepairs:
        return AllowedRepairs(trash_seconds=self.trash_seconds, may_create=self.may_create, remove_damaged=True)

    @property
    def rules(self) -> StorageRules:
        return StorageRules(retention=self.retention, reserve_bytes=0, trash_seconds=self.trash_seconds)


async def _nothing(_: Server) -> None:
    pass


async def _save_a(server: Server) -> None:
    await server.save("a")


async def _save_a_and_b(server: Server) -> None:
    await server.save("a")
    await server.save("b")


async def _save_three(server: Server) -> None:
    for name in ("a", "b", "c"):
        await server.save(name)


async def _overwrite_a(server: Server) -> None:
    await server.save("a", overwrite=True)


async def _delete_a(server: Server) -> None:
    await server.delete("a")


async def _delete_two(server: Server) -> None:
    await server.delete("a", "c")


async def _sweep(server: Server) -> None:
    await server.engine.sweeper.sweep()


async def _save_to_expire(server: Server) -> None:
    await server.save("a", ttl_seconds=60)
    await server.save("b")
    server.clock.advance(61)


async def _trash_a(server: Server) -> None:
    await _save_a_and_b(server)
    await server.delete("a")


async def _restore(server: Server, name: str | None = None) -> None:
    [trashed] = await server.engine.checkpoints.list_trash("ann")
    await server.engine.checkpoints.undelete(trashed.trash_id, name=name, by="ann")


async def _restore_as_c(server: Server) -> None:
    await _restore(server, "c")


async def _trash_a_and_wait(server: Server) -> None:
    await _trash_a(server)
    server.clock.advance(DAY + 1)


async def _purge(server: Server) -> None:
    await server.engine.checkpoints.purge_due()


async def _copy_a(server: Server) -> None:
    await server.engine.checkpoints.copy(await server.row("a"), owner="bob", project_id=None, by="bob")


async def _sample(server: Server) -> None:
    """Weights that nobody lists, from their snapshot to the end of their session."""
    assert server.live is not None
    told = await server.result(await server.engine.training.save_for_sampling(server.live, server.next_seq_id(), 0))
    assert "error" not in told, told
    await server.engine.catalog.sessions.finish("s", reason="success", now=server.clock())
    await server.engine.sessions.finish("s")
    while any(entry.name.endswith("ephemeral") for entry in server.engine.storage.store.entries()):
        await asyncio.sleep(0.001)


async def _save_six(server: Server) -> None:
    for name in ("a", "b", "c", "d", "e", "f"):
        await server.save(name)


def _hurt_everything(data: Path) -> None:
    """Take bytes, rows and the end of a save away, and leave behind what crashes leave."""
    store = FileStore(data / "checkpoints")
    with closing(sqlite3.connect(data / "catalog.sqlite3")) as database, database:
        archives = dict(database.execute("select name, archive from checkpoints"))
        database.execute("delete from checkpoints where name = 'b'")
        database.execute("update checkpoints set state = 'pending' where name = 'c'")
        database.execute("update checkpoints set size_bytes = 1 where name = 'e'")
        database.execute("update checkpoints set state = 'damaged', damage = 'it was' where name = 'f'")
    store.delete(archives["a"])
    store.path(archives["d"]).write_bytes(store.path(archives["d"]).read_bytes()[:-4096])
    store.copy(archives["f"], "over.sample.0/ephemeral")
    (store.root / ".partial" / "x-0123.tar").write_bytes(b"half")
    (store.root / "old.train.0" / "weights").mkdir(parents=True)


def _lose_the_catalog(data: Path) -> None:
    (data / "catalog.sqlite3").unlink()


A, AB, B = World({"a": 1}), World({"a": 1, "b": 2}), World({"b": 2})
HEALED = World({"b": 2, "c": 3, "e": 5, "f": 6})
SCENARIOS = {
    "save": Scenario(_save_a, lambda server: server.save("b"), before=A, after=AB),
    "first save": Scenario(_nothing, _save_a, before=World({}), after=A),
    "overwrite": Scenario(_save_a, _overwrite_a, before=A, after=World({"a": 2})),
    "overwrite with undo": Scenario(
        _save_a, _overwrite_a, before=A, after=World({"a": 2}, {"a": 1}), trash_seconds=DAY
    ),
    "delete": Scenario(_save_a_and_b, _delete_a, before=AB, after=B),
    "delete with undo": Scenario(
        _save_a_and_b, _delete_a, before=AB, after=World({"b": 2}, {"a": 1}), trash_seconds=DAY
    ),
    "delete of two": Scenario(_save_three, _delete_two, before=World({"a": 1, "b": 2, "c": 3}), after=B),
    "sweep of what expired": Scenario(_save_to_expire, _sweep, before=B, after=B, elapsed_seconds=61),
    "sweep by retention": Scenario(
        _save_three, _sweep, before=World({"c": 3}), after=World({"c": 3}), retention=Retention(keep_last=1)
    ),
    "restore": Scenario(_trash_a, _restore, before=World({"b": 2}, {"a": 1}), after=AB, trash_seconds=DAY),
    "restore under another name": Scenario(
        _trash_a, _restore_as_c, before=World({"b": 2}, {"a": 1}), after=World({"b": 2, "c": 1}), trash_seconds=DAY
    ),
    "purge": Scenario(_trash_a_and_wait, _purge, before=B, after=B, trash_seconds=DAY, elapsed_seconds=DAY + 1),
    "copy": Scenario(_save_a, _copy_a, before=A, after=World({"a": 1, "a of bob": 1})),
    "weights of a sampler": Scenario(_save_a, _sample, before=A, after=A),
    "doctor": Scenario(_save_six, _nothing, before=HEALED, after=HEALED, hurt=_hurt_everything),
    "rebuild": Scenario(_save_a_and_b, _nothing, before=AB, after=AB, hurt=_lose_the_catalog, may_create=True),
}


@asynccontextmanager
async def served(data: Path, scenario: Scenario, clock: Clock) -> Any:
    store = store_of(data)
    storage = ArchiveStorage(store)
    async with await Catalog.open(f"sqlite:///{data}/catalog.sqlite3") as catalog:
        engine = Engine(FakeBackend(store), catalog, storage, data=data, rules=scenario.rules, now=clock)
        await engine.start()
        yield Server(engine, clock)
        await engine.stop()
    storage.close()


async def live_and_die(data: Path, scenario: Scenario, step: int, say: Say) -> None:
    """Do it all, and be killed on the way, or at the end."""
    killer = StepKiller(step, CALLS, is_armed=False)
    killer.watch()
    async with served(data, scenario, Clock()) as server:
        await server.open_run()
        await scenario.prepare(server)
        if scenario.hurt is None:
            killer.arm()
            await scenario.act(server)
            say(killer.count)
            os.kill(os.getpid(), signal.SIGKILL)
    scenario.hurt(data)
    killer.arm()
    await repair(data, scenario.allowed, now=Clock().at, is_full=True, progress=silent, store_url=store_url(data))
    say(killer.count)
    os.kill(os.getpid(), signal.SIGKILL)


async def restart_and_fix(data: Path, scenario: Scenario, say: Say) -> None:
    """The server comes back, and ends well; then the doctor."""
    now = Clock().at + timedelta(seconds=scenario.elapsed_seconds)
    async with served(data, scenario, Clock(now)) as server:
        await server.come_back()
        await server.engine.sweeper.sweep()
    visit = await look(data, now=now, is_full=True, progress=silent, store_url=store_url(data))
    found = {finding.kind.value for finding in visit.examination.problems}
    if scenario.hurt is None:
        assert found <= HARMLESS_BEFORE_A_FIX, f"after a restart there was {visit.examination.problems}"
    await fix(data, scenario, say)


async def fix(data: Path, scenario: Scenario, say: Say) -> None:
    """The doctor alone; then a server starts as if nothing had been."""
    now = Clock().at + timedelta(seconds=scenario.elapsed_seconds)
    visit = await repair(data, scenario.allowed, now=now, is_full=True, progress=silent, store_url=store_url(data))
    assert visit.examination.problems == (), visit
    async with served(data, scenario, Clock(now)) as server:
        await server.come_back()
        await server.engine.sweeper.sweep()
    say(await seen(data, now))


async def seen(data: Path, now: datetime) -> dict[str, Any]:
    """The world as it is, after a look at every byte of it."""
    store = store_of(data)
    async with await Catalog.open(f"sqlite:///{data}/catalog.sqlite3") as catalog:
        examination = await examine(catalog, store, now=now, journals=data / RUN_JOURNALS, is_full=True)
        assert examination.problems == (), examination
        rows = [row async for row in catalog.checkpoints.iterate()]
        trashed = [each.checkpoint for each in await catalog.trash.list()]
        others = {entry.name for entry in store.entries() if _is_the_servers(entry.name)}
        assert {entry.name for entry in store.entries()} - others == {row.archive for row in (*rows, *trashed)}
        assert {row.state for row in rows} <= {"ready"}
        for row in rows:
            assert (await catalog.runs.get(row.run_id)).owner == row.owner
    return {
        "listed": {_called(row): _weight(store, row) for row in rows},
        "trash": {_called(row): _weight(store, row) for row in trashed},
    }


def _is_the_servers(archive: str) -> bool:
    """Weights of samplers, and what brings a run back."""
    return archive.endswith("/ephemeral") or recovered_run(archive) is not None


def _called(row: CheckpointRow) -> str:
    return row.name if row.owner == "ann" else f"{row.name} of {row.owner}"


def _weight(store: Store, row: CheckpointRow) -> int:
    with Archive(store.open(row.archive)) as archive:
        verify_archive(archive)
        return int(load_state(archive)["run"]["weight"][0])


def recovered(data: Path, scenario: Scenario, recover: Callable[..., Awaitable[None]]) -> World:
    copy = data.with_name("recovered")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(data, copy)
    said, status = in_child(lambda say: _recover(recover, data, copy, scenario, say))
    assert status == 0, "the recovery failed"
    return World(**said[-1])


async def _recover(
    recover: Callable[..., Awaitable[None]], data: Path, copy: Path, scenario: Scenario, say: Say
) -> None:
    if BUCKET is not None:
        give_prefix(copy)
        copy_objects(data, copy)
    await recover(copy, scenario, say)


def copy_objects(data: Path, copy: Path) -> None:
    """All that is below the prefix of ``data``, its claim, too, as if the bucket had been copied with the directory."""
    from chockstone.checkpoints.stores.bucket import RetryPolicy
    from chockstone.checkpoints.stores.object_store import connect

    (name, before), (_, after) = (str(store_url(each)).removeprefix("s3://").split("/", 1) for each in (data, copy))
    bucket = connect("s3", name, RetryPolicy())
    for facts in bucket.below(before):
        bucket.copy(facts, after + facts.key[len(before) :], overwrite=True)


def killed(data: Path, scenario: Scenario, step: int) -> list[int]:
    """A data directory as a server leaves it that is killed before that step; what the server said before."""
    make_data(data)
    said, status = in_child(lambda say: live_and_die(data, scenario, step, say))
    assert os.WIFSIGNALED(status), f"the server ended by itself before step {step}: {status}"
    return said


def sweep(data: Path, scenario: Scenario, stride: int) -> int:
    """Kill at every step, or at each ``stride``-th; how many kills there were before the operation was complete."""
    for step in range(1, MOST_STEPS, stride):
        said = killed(data, scenario, step)
        allowed = [scenario.after] if said else [scenario.before, scenario.after]
        for recover in (restart_and_fix, fix):
            world = recovered(data, scenario, recover)
            told = "after it was acknowledged" if said else f"before step {step}"
            assert world in allowed, f"killed {told}, {recover.__name__}: {world} is none of {allowed}"
        if said and said[0] < step:
            return step // stride
    raise AssertionError(f"the operation takes more than {MOST_STEPS} steps")


def main(home: Path, name: str, stride: int) -> None:
    prepare_imports()
    steps = sweep(home / "data", SCENARIOS[name], stride)
    print(f"{name}: killed at {steps} steps")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
