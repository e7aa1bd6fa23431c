from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chockstone.catalog import Catalog, CheckpointRow
from chockstone.checkpoints import Best, Retention
from chockstone.checkpoints.errors import StoreUnreachable
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.engine.engine import Engine
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.sweeper import SweepReport
from chockstone.wire.paths import Kind
from support.engine.fake_backend import FakeBackend
from support.engine.making import RUN, Clock, answer, archives_of, made_run, names, save, saved, started, until


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def sweeping(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, clock: Clock
) -> AsyncIterator[Engine]:
    """An engine without rules of its own."""
    async with started(backend, catalog, storage, clock=clock) as engine:
        yield engine


async def save_some(engine: Engine, clock: Clock, *some: str, run: int = 0, **facts: Any) -> list[CheckpointRow]:
    live = engine.runs.get(f"s:train:{run}") or await made_run(engine, run, owner=facts.pop("owner", "local"))
    rows = []
    for name in some:
        clock.pass_seconds(1)
        rows.append(await saved(engine, live, None, name, **facts))
    return rows


def removed(report: SweepReport) -> dict[str, str]:
    return {each.path.rpartition("/")[2]: each.reason for each in report.removed}


async def listed(engine: Engine, clock: Clock, run_id: str = RUN, kind: str = "weights") -> set[str]:
    return await names(engine, run_id, kind, now=clock.now)


async def test_what_expired_goes_and_frees_the_disk(sweeping: Engine, clock: Clock) -> None:
    [kept] = await save_some(sweeping, clock, "kept")
    [gone] = await save_some(sweeping, clock, "gone", ttl_seconds=3600)
    assert (await sweeping.sweeper.sweep_what_changed()).removed == ()
    clock.pass_seconds(3600)
    assert await listed(sweeping, clock) == {"kept"}

    report = await sweeping.sweeper.sweep_what_changed()

    assert removed(report) == {"gone": "expired"}
    assert (report.purged, report.freed_bytes) == (1, gone.size_bytes)
    assert archives_of(sweeping) == {kept.archive}
    await sweeping.audit.flush()
    [entry] = await sweeping.catalog.audit.list(None, prefix="checkpoint_expired")
    assert (entry.path, entry.details["by"]) == (gone.path, "sweeper")


async def test_rules_apply_to_each_run_and_kind_alone(sweeping: Engine, clock: Clock) -> None:
    await save_some(sweeping, clock, "a", "b", "c")
    await save_some(sweeping, clock, "a", "b", kind=Kind.SAMPLER_WEIGHTS)
    await save_some(sweeping, clock, "a", "b", run=1)
    await sweeping.policies.set("global", {"keep_last": 1}, by="root")

    await sweeping.sweeper.sweep_what_changed()

    assert await listed(sweeping, clock) == {"c"}
    assert await listed(sweeping, clock, kind="sampler_weights") == {"b"}
    assert await listed(sweeping, clock, "s:train:1") == {"b"}
    assert len(archives_of(sweeping)) == 3


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        (Retention(keep_last=2), {"n4", "n5"}),
        (Retention(keep_every=2), {"n2", "n4", "n5"}),
        (Retention(keep_best=Best("loss", "min", 2)), {"n1", "n3", "n5"}),
        (Retention(keep_best=Best("loss", "max")), {"n2", "n5"}),
        (Retention(keep_last=1, pinned=frozenset({"n1", "weights/n2", "sampler_weights/n3"})), {"n1", "n2", "n5"}),
        (Retention(ttl_seconds=2.5), {"n3", "n4", "n5"}),
        (Retention(), {"n1", "n2", "n3", "n4", "n5"}),
    ],
)
async def test_the_librarys_rules_are_the_servers(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, clock: Clock, retention: Retention, left: set[str]
) -> None:
    losses = {1: "0.1", 2: "9", 3: "0.2", 4: "not a number", 5: "3"}
    async with started(backend, catalog, storage, clock=clock, retention=retention) as engine:
        live = await made_run(engine)
        for number, loss in losses.items():
            await answer(engine, await engine.training.optim_step(live, None, {}))
            await save_some(engine, clock, f"n{number}", user_metadata={"loss": loss, "note": "x"})

        dry = await engine.sweeper.sweep(dry_run=True)
        assert len(archives_of(engine)) == 5
        report = await engine.sweeper.sweep()

        assert await listed(engine, clock) == left
        assert len(archives_of(engine)) == len(left)
        assert report.removed == dry.removed and report.kept == dry.kept
        assert (report.purged, report.freed_bytes) == (dry.purged, dry.freed_bytes)
        assert dry.dry_run and not report.dry_run
        assert {each.path.rpartition("/")[2] for each in report.kept} == left
        assert all(reason.startswith("retention of default: ") for reason in removed(report).values())


async def test_the_most_specific_policy_applies(sweeping: Engine, clock: Clock) -> None:
    await save_some(sweeping, clock, "a", "b", "c")
    await save_some(sweeping, clock, "a", "b", "c", run=1)
    await save_some(sweeping, clock, "a", "b", "c", run=2, owner="ann")
    await sweeping.policies.set("global", {"keep_last": 1}, by="root")
    await sweeping.policies.set("user:local", {"keep_last": 2}, by="local")
    await sweeping.policies.set(f"run:{RUN}", {}, by="local")

    report = await sweeping.sweeper.sweep()

    assert await listed(sweeping, clock) == {"a", "b", "c"}
    assert await listed(sweeping, clock, "s:train:1") == {"b", "c"}
    assert await listed(sweeping, clock, "s:train:2") == {"c"}
    assert {each.reason for each in report.removed} == {
        "retention of user:local: no rule keeps it",
        "retention of global: no rule keeps it",
    }


async def test_a_sweep_keeps_to_its_scope(sweeping: Engine, clock: Clock) -> None:
    for run, owner in ((0, "local"), (1, "local"), (2, "ann")):
        await save_some(sweeping, clock, "a", "b", run=run, owner=owner)
        await save_some(sweeping, clock, "t", run=run, ttl_seconds=60)
    await sweeping.policies.set("global", {"keep_last": 1}, by="root")
    clock.pass_seconds(60)

    of_run = await sweeping.sweeper.sweep(dry_run=True, run_id=RUN)
    of_owner = await sweeping.sweeper.sweep(dry_run=True, owner="ann")
    of_both = await sweeping.sweeper.sweep(dry_run=True, run_id=RUN, owner="ann")
    of_all = await sweeping.sweeper.sweep(dry_run=True)
    done = await sweeping.sweeper.sweep(run_id=RUN)

    assert {each.path for each in of_run.removed} == {f"tinker://{RUN}/weights/{name}" for name in "at"}
    assert {each.path for each in of_owner.removed} == {f"tinker://s:train:2/weights/{name}" for name in "at"}
    assert (of_both.removed, of_both.kept) == ((), ())
    assert len(of_all.removed) == 6
    assert done.removed == of_run.removed
    assert done.freed_bytes == of_run.freed_bytes > 0
    assert len(archives_of(sweeping)) == 7


async def test_published_checkpoints_stay(sweeping: Engine, clock: Clock) -> None:
    rows = await save_some(sweeping, clock, "a", "b", "c")
    await sweeping.checkpoints.set_public(rows[0], public=True, by="local")
    await sweeping.policies.set("global", {"keep_last": 1}, by="root")

    await sweeping.sweeper.sweep()

    assert await listed(sweeping, clock) == {"a", "c"}


async def test_what_the_newest_was_kept_for_must_be_there(sweeping: Engine, clock: Clock, store: FileStore) -> None:
    rows = await save_some(sweeping, clock, "a", "b", "c", "d")
    store.path(rows[3].archive).unlink()
    path = store.path(rows[2].archive)
    path.write_bytes(path.read_bytes()[:-4096])
    await sweeping.policies.set("global", {"keep_last": 1}, by="root")

    dry = await sweeping.sweeper.sweep(dry_run=True)
    report = await sweeping.sweeper.sweep()

    assert removed(dry) == removed(report) == {"a": "retention of global: no rule keeps it"}
    assert await listed(sweeping, clock) == {"b", "c", "d"}
    states = {row.name: row.state for row in await sweeping.catalog.checkpoints.list_by_run(RUN, now=clock.now)}
    assert states == {"b": "ready", "c": "damaged", "d": "damaged"}


async def test_a_store_that_does_not_answer_loses_nothing(
    sweeping: Engine, clock: Clock, storage: ArchiveStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await save_some(sweeping, clock, "a", "b")
    await sweeping.policies.set("global", {"keep_last": 1}, by="root")

    async def unreachable(archive: str) -> None:
        raise StoreUnreachable("timed out")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "open", unreachable)
        assert (await sweeping.sweeper.sweep()).removed == ()

    assert await listed(sweeping, clock) == {"a", "b"}


async def test_with_a_trash_window_a_sweep_can_be_undone_and_does_not_undo_that(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, clock: Clock
) -> None:
    rules = {"retention": Retention(keep_last=1), "trash_seconds": 3600.0}
    async with started(backend, catalog, storage, clock=clock, **rules) as engine:
        await save_some(engine, clock, "a", "b")
        dry = await engine.sweeper.sweep(dry_run=True)
        report = await engine.sweeper.sweep()
        assert removed(report) == removed(dry) and "a" in removed(report)
        assert dry.freed_bytes == report.freed_bytes == 0
        [trashed] = await engine.checkpoints.list_trash(None)

        await engine.checkpoints.undelete(trashed.trash_id, by="local")
        await engine.sweeper.sweep()
        assert await listed(engine, clock) == {"a", "b"}

        clock.pass_seconds(3600)
        await engine.sweeper.sweep()
        assert await listed(engine, clock) == {"b"}
        clock.pass_seconds(3600)
        assert (await engine.sweeper.sweep(dry_run=True)).purged == 1
        assert (await engine.sweeper.sweep()).purged == 1
        assert len(archives_of(engine)) == 1


async def test_a_foretold_sweep_knows_what_samplers_use(sweeping: Engine, clock: Clock, catalog: Catalog) -> None:
    rows = await save_some(sweeping, clock, "a", "b", "c")
    await catalog.samplers.create(
        "s", 0, owner="local", base_model="tiny", model_path=rows[0].path, archive=rows[0].archive, now=clock.now
    )
    await sweeping.policies.set("global", {"keep_last": 1}, by="root")

    dry = await sweeping.sweeper.sweep(dry_run=True)
    report = await sweeping.sweeper.sweep()

    assert (dry.purged, dry.freed_bytes) == (report.purged, report.freed_bytes) == (1, rows[1].size_bytes)
    assert await listed(sweeping, clock) == {"c"}
    assert archives_of(sweeping) == {rows[0].archive, rows[2].archive}


async def test_the_background_reads_only_runs_that_changed(
    backend: FakeBackend,
    catalog: Catalog,
    storage: ArchiveStorage,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started(backend, catalog, storage, clock=clock, retention=Retention(keep_last=1)) as engine:
        read: list[str] = []
        original = catalog.checkpoints.list_by_run

        async def count(run_id: str, **more: Any) -> tuple[CheckpointRow, ...]:
            read.append(run_id)
            return await original(run_id, **more)

        async def swept() -> list[str]:
            read.clear()
            await engine.sweeper.sweep_what_changed()
            return list(read)

        monkeypatch.setattr(catalog.checkpoints, "list_by_run", count)
        for run in range(3):
            await save_some(engine, clock, "a", run=run)
        await swept()
        assert await swept() == []
        await save_some(engine, clock, "b", run=1)
        assert await swept() == ["s:train:1"]
        assert await swept() == []
        await engine.policies.set("user:ann", {"keep_last": 9}, by="root")
        assert await swept() == ["s:train:0", "s:train:1", "s:train:2"]
        assert await swept() == []
        clock.pass_seconds(3600)
        assert len(await swept()) == 3


async def test_what_gets_too_old_goes_with_the_next_sweep_and_no_other_run_is_read(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(backend, catalog, storage, clock=clock, retention=Retention(ttl_seconds=100.0)) as engine:
        await save_some(engine, clock, "a", run=1)
        await save_some(engine, clock, "old", "b", "c")
        await engine.sweeper.sweep_what_changed()
        read: list[str] = []
        original = catalog.checkpoints.list_by_run

        async def count(run_id: str, **more: Any) -> tuple[CheckpointRow, ...]:
            read.append(run_id)
            return await original(run_id, **more)

        monkeypatch.setattr(catalog.checkpoints, "list_by_run", count)
        assert removed(await engine.sweeper.sweep(dry_run=True)) == {}
        read.clear()

        clock.pass_seconds(97)
        assert removed(await engine.sweeper.sweep_what_changed()) == {} and read == ["s:train:1"]
        clock.pass_seconds(1)
        assert set(removed(await engine.sweeper.sweep_what_changed())) == {"old"}
        clock.pass_seconds(60)
        assert set(removed(await engine.sweeper.sweep_what_changed())) == {"b"}
        read.clear()
        clock.pass_seconds(60)
        assert removed(await engine.sweeper.sweep_what_changed()) == {} and read == [], "what stays is the newest"


async def test_what_is_no_longer_published_goes_if_it_is_too_old(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, clock: Clock
) -> None:
    async with started(backend, catalog, storage, clock=clock) as engine:
        await engine.policies.set("global", {"ttl_seconds": 100}, by="root")
        public, _ = await save_some(engine, clock, "public", "newest")
        await engine.checkpoints.set_public(public, public=True, by="local")
        clock.pass_seconds(200)
        await engine.sweeper.sweep_what_changed()

        await engine.checkpoints.set_public(public, public=False, by="local")

        assert set(removed(await engine.sweeper.sweep_what_changed())) == {"public"}


async def test_what_a_failed_sweep_did_not_see_the_next_one_does(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(
        backend, catalog, storage, clock=clock, retention=Retention(keep_last=1), sweep_seconds=0.01
    ) as engine:
        original = catalog.checkpoints.list_by_run
        failures = iter([True, True])

        async def fail_first(run_id: str, **more: Any) -> tuple[CheckpointRow, ...]:
            if next(failures, False):
                raise OSError("the database went away")
            return await original(run_id, **more)

        await save_some(engine, clock, "a")
        monkeypatch.setattr(catalog.checkpoints, "list_by_run", fail_first)
        live = engine.runs.get(RUN)
        assert live is not None
        clock.pass_seconds(1)
        await answer(engine, await save(engine, live, None, "b"))

        await until(lambda: len(archives_of(engine)) == 1)


async def test_without_any_rule_no_run_is_read(
    sweeping: Engine, clock: Clock, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await save_some(sweeping, clock, "a")

    async def never(*_: object, **__: object) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(catalog.checkpoints, "list_by_run", never)
    await sweeping.policies.set("user:ann", {"quota_bytes": 5}, by="root")

    await sweeping.sweeper.sweep_what_changed()


async def test_the_background_sweeps_by_itself_and_goes_on_after_a_failure(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(
        backend, catalog, storage, clock=clock, retention=Retention(keep_last=1), sweep_seconds=0.01
    ) as engine:
        original = catalog.checkpoints.list_expired
        failures = iter([True, True])

        async def fail_first(**more: Any) -> tuple[CheckpointRow, ...]:
            if next(failures, False):
                raise OSError("the database went away")
            return await original(**more)

        monkeypatch.setattr(catalog.checkpoints, "list_expired", fail_first)
        await save_some(engine, clock, "a", "b")

        await until(lambda: len(archives_of(engine)) == 1)
        assert await listed(engine, clock) == {"b"}


async def test_sweeps_beside_saves_and_deletes_never_fail(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, clock: Clock
) -> None:
    async with started(backend, catalog, storage, clock=clock, retention=Retention(keep_last=2)) as engine:
        live = await made_run(engine)

        async def write() -> None:
            for number in range(12):
                clock.pass_seconds(1)
                await saved(engine, live, None, f"n{number % 4}", overwrite=True)

        async def sweep() -> None:
            for _ in range(12):
                await engine.sweeper.sweep()
                rows = await catalog.checkpoints.list_by_run(RUN, now=clock.now)
                await engine.checkpoints.delete(rows[-1:], by="local")

        writing = asyncio.create_task(write())
        await sweep()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await live.lane.drained()
        await engine.sweeper.sweep()

        rows = await catalog.checkpoints.list_by_run(RUN, now=clock.now)
        assert len(rows) <= 2
        assert archives_of(engine) == {row.archive for row in rows}
        for row in rows:
            await storage.verify(row.archive)


async def test_files_left_half_written_by_the_dead_are_removed(sweeping: Engine, store: FileStore) -> None:
    import os

    partial = store.root / ".partial" / "left.tar"
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(b"half")
    os.utime(partial, (0, 0))

    sweeping.sweeper.look_at_everything()
    await sweeping.sweeper.sweep_what_changed()

    assert not partial.exists()
