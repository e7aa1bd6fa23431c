"""Saves: two transactions each, an end for each that a crash cut short, and room made where there is none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chockstone.backends.calls import values_of
from chockstone.backends.protocol import SaveCall, SaveReply, WorkerLost
from chockstone.catalog import Catalog, CatalogUnavailable, CheckpointRow
from chockstone.catalog.database.database import Database
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.engine.engine import Engine
from chockstone.engine.runs.run_journal import RunJournal
from chockstone.engine.storage.archive_names import archive_name
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.wire.failures import BadRequest, ServerFailure
from chockstone.wire.paths import Kind
from support.engine.fake_backend import FakeBackend, Numbers
from support.engine.lives import lived
from support.engine.making import (
    NOW,
    RUN,
    answer,
    archives_of,
    made_run,
    names,
    save,
    saved,
    settle_down,
    started,
    until,
)


async def begun(catalog: Catalog, *, overwrite: bool = False, name: str = "a") -> CheckpointRow:
    """As a server leaves it that is killed while it saves."""
    return await catalog.checkpoint_saves.begin(
        *(RUN, "weights", name),
        archive=archive_name(RUN, "weights", name, 1),
        owner="local",
        base_model="tiny",
        spec={"rank": 8},
        overwrite=overwrite,
        now=NOW,
    )


def write(backend: FakeBackend, row: CheckpointRow, weight: int = 42) -> None:
    backend._write(SaveCall(run_id=row.run_id, archive=row.archive, kind=row.kind), Numbers(weight))


async def until_trash(engine: Engine, *archives: str) -> None:
    async with asyncio.timeout(10):
        while {each.archive for each in await engine.checkpoints.list_trash(None)} != set(archives):
            await asyncio.sleep(0.001)


async def test_a_save_takes_two_transactions_and_what_is_written_behind(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await made_run(engine)
    transactions: list[bool] = []
    original = Database.run

    async def count(self: Database, work: Any, *, writes: bool) -> Any:
        if asyncio.current_task() in live.lane._running:
            transactions.append(writes)
        return await original(self, work, writes=writes)

    monkeypatch.setattr(Database, "run", count)
    await answer(engine, await save(engine, live, 1))

    assert transactions == [True, True]


async def test_external_weights_are_saved_for_their_recipients(engine: Engine, backend: FakeBackend) -> None:
    live = await made_run(engine)

    told = await answer(engine, await save(engine, live, 1, kind=Kind.EXTERNAL_WEIGHTS, recipients=["age1xyz"]))

    [archive] = archives_of(engine)
    assert told == {
        "path": f"tinker://{RUN}/external_weights/a",
        "size_bytes": backend.store.stat(archive).size,
        "type": "save_weights_external",
    }
    [values] = backend.values_of("save")
    assert (values["kind"], values["recipients"], values["allowance_bytes"]) == ("external_weights", ["age1xyz"], None)


async def test_a_checkpoint_knows_its_step(engine: Engine, catalog: Catalog) -> None:
    live = await made_run(engine)
    for _ in range(3):
        await engine.training.optim_step(live, None, {})
    row = await saved(engine, live, None)
    await engine.training.optim_step(live, None, {})
    await answer(engine, await engine.training.load(live, None, row, with_optimizer=True))
    resumed = await saved(engine, live, None, "resumed")
    await answer(engine, await engine.training.load(live, None, row, with_optimizer=False))
    fresh = await saved(engine, live, None, "fresh")

    assert (row.step, resumed.step, fresh.step) == (3, 3, 0)


# The log.


def saves_logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """By the server. The library's own line is not logged in a worker."""
    of_server = [record.message for record in caplog.records if not record.name.startswith("chockstone.checkpoints")]
    return [message.partition(" bytes=")[0] for message in of_server if "checkpoint saved" in message]


async def test_each_named_save_is_one_line_of_the_log(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    live = await made_run(engine)

    for seq_id, name in enumerate(("a", "b"), start=1):
        await saved(engine, live, seq_id, name)
        await saved(engine, live, seq_id, name)  # a client that got no answer sends it again

    assert saves_logged(caplog) == [f"checkpoint saved run={RUN} kind=weights name={name} step=0" for name in "ab"]


async def test_a_save_that_is_repeated_after_its_worker_died_is_one_line_of_the_log(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with lived(home) as life:
        await life.make()
        life.backend.hold("disk")
        saving = await life.ask_save()
        await until(lambda: "save" in life.backend.words())

        life.backend.die("signal 9")
        await life.told(saving)

        assert life.backend.words().count("save") == 2
    assert saves_logged(caplog) == [f"checkpoint saved run={RUN} kind=weights name=a step=0"]


async def test_a_save_that_the_next_server_finds_complete_is_one_line_of_the_log(
    home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    async with lived(home) as first:
        await first.make()
        with monkeypatch.context() as patched:
            patched.setattr(RunJournal, "settle", lambda journal, operation, outcome: None)
            saving = await first.ask_save()
            told = await first.told(saving)
        left = first.crash()

    async with lived(left, after=first) as second:
        assert await second.told(saving) == told

    assert saves_logged(caplog) == [f"checkpoint saved run={RUN} kind=weights name=a step=0"]


# The next start.


async def test_a_save_whose_archive_is_whole_is_committed(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    row = await begun(catalog)
    write(backend, row)

    async with started(backend, catalog, storage) as engine:
        found = await catalog.checkpoints.get(RUN, "weights", "a", now=NOW)
        assert (found.state, found.size_bytes) == ("ready", backend.store.stat(row.archive).size)
        live = await made_run(engine, 1)
        assert "path" in await answer(engine, await engine.training.load(live, 1, found, with_optimizer=False))
        assert backend.runs["s:train:1"].weight == 42


async def test_a_save_without_an_archive_is_given_up(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    await begun(catalog)

    async with started(backend, catalog, storage) as engine:
        assert await catalog.checkpoints.list_pending() == ()
        assert await names(engine) == set()


async def test_a_save_whose_archive_is_not_whole_is_given_up_and_leaves_nothing(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, store: FileStore
) -> None:
    row = await begun(catalog)
    write(backend, row)
    path = store.path(row.archive)
    path.write_bytes(path.read_bytes()[:-4096])

    async with started(backend, catalog, storage) as engine:
        assert await catalog.checkpoints.list_pending() == ()
        assert archives_of(engine) == set()


@pytest.mark.parametrize("trash_seconds", [0.0, 3600.0])
async def test_an_overwrite_that_was_written_is_finished(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, trash_seconds: float
) -> None:
    old = await begun(catalog)
    write(backend, old, 1)
    await catalog.checkpoint_saves.commit(old, size_bytes=10, now=NOW)
    new = await begun(catalog, overwrite=True)
    write(backend, new, 2)

    async with started(backend, catalog, storage, trash_seconds=trash_seconds) as engine:
        assert (await catalog.checkpoints.get(RUN, "weights", "a", now=NOW)).archive == new.archive
        kept = {new.archive} if not trash_seconds else {new.archive, old.archive}
        await until(lambda: archives_of(engine) == kept)
        await until_trash(engine, *([old.archive] if trash_seconds else []))


async def test_an_overwrite_that_was_not_written_leaves_the_old_one(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    old = await begun(catalog)
    write(backend, old, 1)
    await catalog.checkpoint_saves.commit(old, size_bytes=10, now=NOW)
    await begun(catalog, overwrite=True)

    async with started(backend, catalog, storage) as engine:
        assert (await catalog.checkpoints.get(RUN, "weights", "a", now=NOW)).archive == old.archive
        assert archives_of(engine) == {old.archive}
        assert await catalog.checkpoints.list_pending() == ()


async def test_a_delete_that_was_cut_short_is_finished(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    rows = [await begun(catalog, name=name) for name in ("due", "kept", "live")]
    for row in rows:
        write(backend, row)
        await catalog.checkpoint_saves.commit(row, size_bytes=10, now=NOW)
    due, kept, live = rows
    await catalog.checkpoints.discard([due], reason="deleted", now=NOW, purge_at=NOW)
    await catalog.checkpoints.discard([kept], reason="deleted", now=NOW, purge_at=NOW + timedelta(hours=1))

    async with started(backend, catalog, storage) as engine:
        await until(lambda: archives_of(engine) == {kept.archive, live.archive})
        await until_trash(engine, kept.archive)


async def test_a_delete_whose_bytes_went_already_is_finished(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    row = await begun(catalog)
    await catalog.checkpoint_saves.commit(row, size_bytes=10, now=NOW)
    await catalog.checkpoints.discard([row], reason="deleted", now=NOW, purge_at=NOW)

    async with started(backend, catalog, storage) as engine:
        await until_trash(engine)


# A worker that dies, or fails.


async def test_a_save_that_was_written_before_its_worker_died_is_a_save(
    engine: Engine, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await made_run(engine)
    backend.runs[RUN].weight = 42
    original = backend.save

    async def die_after(call: SaveCall, **options: Any) -> SaveReply:
        await original(call, **options)
        raise WorkerLost("signal 9")

    monkeypatch.setattr(backend, "save", die_after)
    told = await answer(engine, await save(engine, live, 1))

    assert told["path"] == f"tinker://{RUN}/weights/a"
    assert await names(engine) == {"a"}
    assert list(backend.archives.values()) == [42]


async def test_a_save_that_fails_leaves_neither_row_nor_bytes(
    engine: Engine, backend: FakeBackend, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await made_run(engine)
    original = backend.save

    async def fail_after(call: SaveCall, **options: Any) -> SaveReply:
        await original(call, **options)
        raise ServerFailure("no memory to tell how it went")

    monkeypatch.setattr(backend, "save", fail_after)
    assert "error" in await answer(engine, await save(engine, live, 1))

    assert await catalog.checkpoints.list_pending() == ()
    assert archives_of(engine) == set()


async def test_a_save_that_fails_after_its_publication_keeps_its_bytes(
    engine: Engine, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await made_run(engine)
    commit = catalog.checkpoint_saves.commit

    async def told_too_late(*row: CheckpointRow, **facts: Any) -> None:
        await commit(*row, **facts)
        raise CatalogUnavailable("the answer was lost")

    monkeypatch.setattr(catalog.checkpoint_saves, "commit", told_too_late)
    assert "error" in await answer(engine, await save(engine, live, 1))

    row = await catalog.checkpoints.get(RUN, "weights", "a", now=NOW)
    assert archives_of(engine) == {row.archive}


@pytest.mark.parametrize("worker", ["lives", "dies"])
async def test_a_save_that_the_catalog_will_not_end_ends_when_it_does(
    engine: Engine, backend: FakeBackend, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, worker: str
) -> None:
    live = await made_run(engine)
    original = backend.save

    async def unavailable(*_: object, **__: object) -> None:
        raise CatalogUnavailable("the disk is full")

    async def die_after(call: SaveCall, **options: Any) -> SaveReply:
        await original(call, **options)
        raise WorkerLost("signal 9")

    with monkeypatch.context() as patched:
        for step in ("commit", "fail"):
            patched.setattr(catalog.checkpoint_saves, step, unavailable)
        if worker == "dies":
            patched.setattr(backend, "save", die_after)
        assert "error" in await answer(engine, await save(engine, live, 1))
    assert len(await catalog.checkpoints.list_pending()) == 1

    row = await saved(engine, live, 2)

    assert await catalog.checkpoints.list_pending() == ()
    assert archives_of(engine) == {row.archive}


# A disk without room.


def no_room_while(backend: FakeBackend, is_full: Callable[[], bool], *, released: bool) -> None:
    """The worker refuses to write, having let the run go on or not."""
    original = backend.save

    async def save(call: SaveCall, *, on_release: Callable[[], None], generation: int | None) -> SaveReply:
        if call.kind == "recovery" or not is_full():
            return await original(call, on_release=on_release, generation=generation)
        backend.calls.append(("save", values_of(call), b""))
        if released:
            on_release()
            await settle_down()
        raise BadRequest("there is no room", code="no_room", needed_bytes=20000)

    backend.save = save  # type: ignore[method-assign]  # for this test


async def test_trash_makes_room_and_the_save_is_tried_once_more(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = storage.store
    monkeypatch.setattr(store, "free_bytes", lambda: 40_000 - sum(entry.size for entry in store.entries()))
    async with started(backend, catalog, storage, trash_seconds=3600) as engine:
        live = await made_run(engine)
        old = await saved(engine, live, 1)
        await engine.checkpoints.delete([old], by="local")
        assert 2 * old.size_bytes > 40_000
        backend.runs[RUN].weight = 7
        await engine.training.forward_backward(live, 2, b"5")
        saving = await save(engine, live, 3, "b")
        await engine.training.optim_step(live, 4, {})  # must not get into the save that is made again

        assert "error" not in await answer(engine, saving)

        assert list(backend.archives.values()) == [7]
        assert backend.words().count("save") == 3
        assert await engine.checkpoints.list_trash(None) == ()


async def test_a_run_that_went_on_meanwhile_is_not_saved_as_it_is_by_then(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.store, "free_bytes", lambda: 1 << 40)  # there seemed to be room
    async with started(backend, catalog, storage, trash_seconds=3600) as engine:
        live = await made_run(engine)
        old = await saved(engine, live, 1)
        await engine.checkpoints.delete([old], by="local")
        no_room_while(backend, lambda: old.archive in archives_of(engine), released=True)

        told = await answer(engine, await save(engine, live, 2, "b"))

        assert told["category"] == "user"
        assert "needs 20000 bytes (20.0 kB)" in told["error"]
        assert f"`chockstone checkpoints rm --run {RUN} --older-than 7d --dry-run`" in told["error"]
        assert backend.words().count("save") == 2
        await saved(engine, live, 3, "b")  # for the trash was emptied


@pytest.mark.parametrize("needed_bytes", [900_000, None], ids=["more than the trash has", "unknown"])
async def test_trash_that_would_not_help_stays(
    backend: FakeBackend,
    catalog: Catalog,
    storage: ArchiveStorage,
    monkeypatch: pytest.MonkeyPatch,
    needed_bytes: int | None,
) -> None:
    async with started(backend, catalog, storage, trash_seconds=3600) as engine:
        live = await made_run(engine)
        old = await saved(engine, live, 1)
        await engine.checkpoints.delete([old], by="local")
        monkeypatch.setattr(storage.store, "free_bytes", lambda: 0)
        backend.fail_next("save", BadRequest("there is no room", code="no_room", needed_bytes=needed_bytes))

        told = await answer(engine, await save(engine, live, 2, "b"))

        assert told["category"] == "user"
        assert archives_of(engine) == {old.archive}
        [trashed] = await engine.checkpoints.list_trash(None)
        await engine.checkpoints.undelete(trashed.trash_id, by="local")


async def test_a_disk_without_room_and_trash_refuses_the_save_alone(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    live = await made_run(engine)
    no_room_while(backend, lambda: True, released=False)

    told = await answer(engine, await save(engine, live, 1))

    assert told["category"] == "user"
    assert "needs 20000 bytes" in told["error"] and "reserved" in told["error"]
    assert backend.words().count("save") == 1
    assert await catalog.checkpoints.list_pending() == ()
    assert "error" not in await answer(engine, await engine.training.optim_step(live, 2, {}))
