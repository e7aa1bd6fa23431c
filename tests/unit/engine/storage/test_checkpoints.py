"""The life of a checkpoint after its save: removal and its races, undeleting, copies."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from chockstone.catalog import Catalog, CatalogUnavailable, CheckpointRow, CheckpointRowExists, RowMissing, TrashRow
from chockstone.catalog.tables.checkpoint_rows import Usage
from chockstone.checkpoints.errors import StoreDenied
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.engine.engine import Engine
from chockstone.engine.samples.sampling import SamplerSource
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import Kind
from support.engine.fake_backend import FakeBackend
from support.engine.making import (
    NOW,
    RUN,
    Clock,
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

DAY = 86_400.0


async def delete(engine: Engine, *rows: CheckpointRow) -> list[str]:
    return [row.name for row in await engine.checkpoints.delete(rows, by="local")]


async def audited(engine: Engine) -> list[str]:
    await engine.audit.flush()
    return [row.event for row in await engine.catalog.audit.list(None)]


async def test_a_deleted_checkpoint_is_gone_from_lists_and_disk_and_its_run_trains_on(engine: Engine) -> None:
    live = await made_run(engine)
    rows = [await saved(engine, live, number, str(number)) for number in range(1, 6)]

    assert await delete(engine, rows[1], rows[3]) == ["2", "4"]

    assert await names(engine) == {"1", "3", "5"}
    assert archives_of(engine) == {rows[0].archive, rows[2].archive, rows[4].archive}
    assert await engine.checkpoints.list_trash(None) == ()
    await engine.training.forward_backward(live, 6, b"5")
    assert "metrics" in await answer(engine, await engine.training.optim_step(live, 7, {}))
    assert (await audited(engine)).count("checkpoint_deleted") == 2


async def test_every_kind_is_deleted_alone(engine: Engine) -> None:
    live = await made_run(engine)
    rows = {kind: await saved(engine, live, number, kind=kind) for number, kind in enumerate(Kind, 1)}

    await delete(engine, rows[Kind.SAMPLER_WEIGHTS])

    assert archives_of(engine) == {rows[Kind.WEIGHTS].archive, rows[Kind.EXTERNAL_WEIGHTS].archive}


async def test_of_many_deletes_at_once_one_wins_and_none_fails(engine: Engine) -> None:
    live = await made_run(engine)
    row, other = await saved(engine, live, 1), await saved(engine, live, 2, "b")

    removed = await asyncio.gather(*(delete(engine, row) for _ in range(32)))

    assert sorted(removed) == [[]] * 31 + [["a"]]
    assert archives_of(engine) == {other.archive}


async def test_deleting_needs_no_worker(backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage) -> None:
    async with started(backend, catalog, storage) as engine:
        row = await saved(engine, await made_run(engine), 1)
        backend.is_ready = False
        backend.hold("forget")
        before = len(backend.calls)

        async with asyncio.timeout(10):
            await delete(engine, row)

        assert archives_of(engine) == set()
        assert len(backend.calls) == before


async def test_an_archive_that_is_gone_already_does_not_fail_its_delete(engine: Engine, store: FileStore) -> None:
    row = await saved(engine, await made_run(engine), 1)
    store.path(row.archive).unlink()

    assert await delete(engine, row) == ["a"]
    assert await engine.checkpoints.list_trash(None) == ()


async def test_an_archive_that_cannot_be_deleted_now_is_later(
    engine: Engine, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await saved(engine, await made_run(engine), 1)

    def refuse(name: str) -> bool:
        raise StoreDenied(f"{name} is read-only")

    with monkeypatch.context() as patched:
        patched.setattr(store, "delete", refuse)
        assert await delete(engine, row) == ["a"]
        assert await engine.checkpoints.purge_due() == ()
    assert await names(engine) == set()
    assert archives_of(engine) == {row.archive}

    report = await engine.sweeper.sweep_what_changed()

    assert (report.purged, report.freed_bytes) == (1, row.size_bytes)
    assert archives_of(engine) == set()


async def test_a_catalog_that_fails_after_the_row_moved_does_not_fail_the_delete(
    engine: Engine, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await saved(engine, await made_run(engine), 1)

    async def unavailable(trash_id: int) -> bool:
        raise CatalogUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(catalog.trash, "forget", unavailable)
        assert await delete(engine, row) == ["a"]
    [left] = await engine.checkpoints.list_trash(None)
    assert left.archive == row.archive

    assert len(await engine.checkpoints.purge_due()) == 1
    assert await engine.checkpoints.list_trash(None) == ()


async def test_a_load_beside_a_delete_gets_all_of_it_or_is_told_that_it_is_gone(
    engine: Engine, backend: FakeBackend
) -> None:
    live = await made_run(engine)
    backend.runs[RUN].weight = 42
    for number in range(10):
        row = await saved(engine, live, None, f"n{number}")
        loading = await engine.training.load(live, None, row, with_optimizer=False)
        for _ in range(number):
            await asyncio.sleep(0)
        await delete(engine, row)
        told = await answer(engine, loading)
        assert told.get("path") == row.path or told["category"] == "user"
        assert backend.runs[RUN].weight == 42

    await answer(engine, await engine.training.close(live))  # it might have had to load them again
    await engine.checkpoints.purge_due()
    assert archives_of(engine) == set()
    assert "checkpoint_damaged" not in await audited(engine)


async def test_deletes_beside_overwrites_of_the_same_name_leave_one_checkpoint_or_none(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    live = await made_run(engine)
    for number in range(20):
        row = await saved(engine, live, None, overwrite=True)
        saving = await save(engine, live, None, overwrite=True)
        for _ in range(number % 5):
            await asyncio.sleep(0.001)
        await delete(engine, row)
        assert "error" not in await answer(engine, saving)

        newest = await catalog.checkpoints.get(RUN, "weights", "a", now=NOW)
        assert archives_of(engine) == {newest.archive}
    assert await catalog.checkpoints.list_pending() == ()


async def test_what_is_only_being_written_cannot_be_deleted(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    live = await made_run(engine)
    backend.hold("disk")
    saving = await save(engine, live, 1)
    await until(lambda: "save" in backend.words())
    [pending] = await catalog.checkpoints.list_pending()

    assert await delete(engine, pending) == []

    backend.let_go("disk")
    assert "error" not in await answer(engine, saving)
    assert await names(engine) == {"a"}


async def test_a_live_sampler_keeps_deleted_weights_until_its_session_ends(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    live = await made_run(engine)
    row = await saved(engine, live, 1, kind=Kind.SAMPLER_WEIGHTS)
    await catalog.samplers.create(
        "s", 0, owner="local", base_model="tiny", model_path=row.path, archive=row.archive, now=NOW
    )
    source = SamplerSource("s:sample:0", "local", "tiny", row.archive)
    await engine.sampling.submit(source, 0, b"x", num_samples=1)
    await engine.sampling.drained()

    assert await delete(engine, row) == ["a"]
    assert await names(engine, kind="sampler_weights") == set()
    assert await engine.checkpoints.purge_due() == ()
    assert archives_of(engine) == {row.archive}

    await catalog.sessions.finish("s", reason="success", now=NOW)
    await engine.sessions.finish("s")
    await until(lambda: not archives_of(engine))
    await until(lambda: backend.values_of("forget") == [{"archive": row.archive}])  # its memory


async def test_the_worker_is_not_told_of_weights_that_nobody_sampled_from(engine: Engine, backend: FakeBackend) -> None:
    row = await saved(engine, await made_run(engine), 1)

    await delete(engine, row)
    await settle_down()

    assert "forget" not in backend.words()


# The trash.


async def test_within_the_trash_window_a_removal_can_be_undone(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock, trash_seconds=DAY) as engine:
        live = await made_run(engine)
        backend.runs[RUN].weight = 42
        row = await saved(engine, live, 1)
        await delete(engine, row)
        assert await names(engine) == set()
        [trashed] = await engine.checkpoints.list_trash("local")
        assert (trashed.reason, trashed.purge_at) == ("deleted", NOW + timedelta(days=1))
        assert await engine.checkpoints.list_trash("ann") == ()

        restored = await engine.checkpoints.undelete(trashed.trash_id, by="local")

        assert restored == row
        assert await names(engine) == {"a"}
        backend.runs[RUN].weight = 0
        assert "path" in await answer(engine, await engine.training.load(live, 2, restored, with_optimizer=False))
        assert backend.runs[RUN].weight == 42
        with pytest.raises(RowMissing):
            await engine.checkpoints.undelete(trashed.trash_id, by="local")


async def test_what_was_overwritten_can_be_had_beside_what_replaced_it(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    async with started(backend, catalog, storage, trash_seconds=DAY) as engine:
        live = await made_run(engine)
        old = await saved(engine, live, 1)
        new = await saved(engine, live, 2, overwrite=True)
        [trashed] = await engine.checkpoints.list_trash(None)
        assert (trashed.reason, trashed.archive) == ("overwritten", old.archive)
        with pytest.raises(BadRequest, match="another name"):
            await engine.checkpoints.undelete(trashed.trash_id, by="local")

        restored = await engine.checkpoints.undelete(trashed.trash_id, name="before", by="local")

        assert (restored.name, restored.archive) == ("before", old.archive)
        assert archives_of(engine) == {old.archive, new.archive}


async def test_after_the_trash_window_the_bytes_go(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock, trash_seconds=DAY) as engine:
        row = await saved(engine, await made_run(engine), 1)
        await delete(engine, row)
        [trashed] = await engine.checkpoints.list_trash(None)
        clock.pass_seconds(DAY - 1)
        assert await engine.checkpoints.purge_due() == ()
        clock.pass_seconds(1)

        assert len(await engine.checkpoints.purge_due()) == 1

        assert archives_of(engine) == set()
        with pytest.raises(RowMissing):
            await engine.checkpoints.undelete(trashed.trash_id, by="local")


async def test_space_is_made_from_the_oldest_trash_and_no_more_than_is_needed(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock, trash_seconds=DAY) as engine:
        live = await made_run(engine)
        rows = [await saved(engine, live, number, f"n{number}") for number in range(1, 5)]
        for row in rows[:3]:
            clock.pass_seconds(1)
            await delete(engine, row)

        freed = await engine.checkpoints.purge_for_space(rows[0].size_bytes + 1)

        assert freed == rows[0].size_bytes + rows[1].size_bytes
        assert archives_of(engine) == {rows[2].archive, rows[3].archive}
        assert [each.archive for each in await engine.checkpoints.list_trash(None)] == [rows[2].archive]


async def test_trash_that_is_not_enough_is_not_purged(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    async with started(backend, catalog, storage, trash_seconds=DAY) as engine:
        live = await made_run(engine)
        rows = [await saved(engine, live, number, f"n{number}") for number in range(1, 4)]
        await catalog.samplers.create("s", 0, owner="local", base_model="tiny", archive=rows[2].archive, now=NOW)
        await delete(engine, *rows)

        assert await engine.checkpoints.purge_for_space(rows[0].size_bytes * 2 + 1) == 0, "the third one is in use"
        assert archives_of(engine) == {row.archive for row in rows}
        assert await engine.checkpoints.purge_for_space(rows[0].size_bytes * 2) == rows[0].size_bytes * 2
        assert archives_of(engine) == {rows[2].archive}


async def test_trash_that_shares_its_bytes_frees_them_with_the_last_of_it(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock, trash_seconds=DAY) as engine:
        live = await made_run(engine)
        row, other = await saved(engine, live, 1), await saved(engine, live, 2, "b")
        copies = [await engine.checkpoints.copy(row, owner="ann", project_id=None, by="ann") for _ in range(2)]
        for each in (row, copies[0], other):
            clock.pass_seconds(1)
            await delete(engine, each)

        assert await engine.checkpoints.purge_for_space(row.size_bytes + 1) == 0, "a copy keeps the first one's bytes"
        assert len(archives_of(engine)) == 4
        await delete(engine, copies[1])
        freed = await engine.checkpoints.purge_for_space(row.size_bytes + 1)

        assert freed == row.size_bytes + other.size_bytes
        assert archives_of(engine) == set()


async def test_what_copies_share_is_used_once_by_the_oldest(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, store: FileStore
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock) as engine:
        live = await made_run(engine)
        row, lost = await saved(engine, live, 1), await saved(engine, live, 2, "b")
        store.path(lost.archive).unlink()
        clock.pass_seconds(1)
        copy = await engine.checkpoints.copy(row, owner="ann", project_id=None, by="ann")

        assert await engine.checkpoints.real_usage_by_run() == {
            RUN: Usage(2, row.size_bytes),
            copy.run_id: Usage(1, 0),
        }
        await delete(engine, row)
        assert await engine.checkpoints.real_usage_by_run() == {RUN: Usage(1, 0), copy.run_id: Usage(1, row.size_bytes)}


async def test_a_purge_beside_a_restore_never_leaves_a_row_without_bytes(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    async with started(backend, catalog, storage, trash_seconds=DAY) as engine:
        live = await made_run(engine)
        outcomes: set[str] = set()
        for number in range(12):
            row = await saved(engine, live, None, f"n{number}")
            await delete(engine, row)
            [trashed] = await engine.checkpoints.list_trash(None)

            async def purge(trashed: TrashRow = trashed, pauses: int = number) -> None:
                for _ in range(pauses):
                    await asyncio.sleep(0.0005)
                await engine.checkpoints.purge([trashed])

            purging = asyncio.create_task(purge())
            try:
                await engine.checkpoints.undelete(trashed.trash_id, by="local")
                outcome = "restored"
            except RowMissing:
                outcome = "purged"
            await purging
            outcomes.add(outcome)
            assert await names(engine) == ({row.name} if outcome == "restored" else set())
            assert archives_of(engine) == ({row.archive} if outcome == "restored" else set())
            await delete(engine, row)
            await engine.checkpoints.purge(await engine.checkpoints.list_trash(None))
        assert outcomes


async def test_a_restore_that_is_overtaken_by_the_purge_of_what_is_due_finds_nothing(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock, trash_seconds=DAY) as engine:
        row = await saved(engine, await made_run(engine), 1)
        await delete(engine, row)
        [trashed] = await engine.checkpoints.list_trash(None)
        undelete = catalog.trash.undelete
        purge = storage.delete

        async def late(trash_id: int, **facts: Any) -> CheckpointRow:
            """Its time was up after it was asked for, and the purge is about to delete the archive."""
            clock.pass_seconds(DAY)
            deleting = asyncio.Event()
            go_on = asyncio.Event()

            async def slow(archive: str) -> bool:
                deleting.set()
                await go_on.wait()
                return await purge(archive)

            monkeypatch.setattr(storage, "delete", slow)
            purging = asyncio.create_task(engine.checkpoints.purge_due())
            await deleting.wait()
            try:
                return await undelete(trash_id, **facts)
            finally:
                go_on.set()
                await purging

        monkeypatch.setattr(catalog.trash, "undelete", late)
        with pytest.raises(RowMissing):
            await engine.checkpoints.undelete(trashed.trash_id, by="local")

        assert await names(engine) == set()
        assert archives_of(engine) == set()


async def test_what_lost_its_bytes_is_not_restored(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, store: FileStore
) -> None:
    async with started(backend, catalog, storage, trash_seconds=DAY) as engine:
        row = await saved(engine, await made_run(engine), 1)
        await delete(engine, row)
        [trashed] = await engine.checkpoints.list_trash(None)
        store.path(row.archive).unlink()

        with pytest.raises(RowMissing, match="not in the store"):
            await engine.checkpoints.undelete(trashed.trash_id, by="local")

        assert await names(engine) == set()


async def test_a_save_under_a_name_in_the_trash_has_bytes_of_its_own(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    async with started(backend, catalog, storage, trash_seconds=DAY) as engine:
        live = await made_run(engine)
        old = await saved(engine, live, 1)
        await delete(engine, old)
        await answer(engine, await engine.training.close(live))
        live = await made_run(engine)  # which counts from the start again

        new = await saved(engine, live, 1)
        await engine.checkpoints.purge(await engine.checkpoints.list_trash(None))

        assert archives_of(engine) == {new.archive} != {old.archive}


# What others may do with it.


async def test_publication_and_lifetime_are_changed_and_audited(engine: Engine) -> None:
    row = await saved(engine, await made_run(engine), 1)

    assert (await engine.checkpoints.set_public(row, public=True, by="local")).public
    assert not (await engine.checkpoints.set_public(row, public=False, by="local")).public
    limited = await engine.checkpoints.set_ttl(row, 3600, by="local")
    assert limited.expires_at == NOW + timedelta(hours=1)
    assert (await engine.checkpoints.set_ttl(row, None, by="local")).expires_at is None

    assert (await audited(engine))[1:] == [
        "checkpoint_published",
        "checkpoint_unpublished",
        "checkpoint_ttl_set",
        "checkpoint_ttl_set",
    ]
    await delete(engine, row)
    with pytest.raises(RowMissing):
        await engine.checkpoints.set_public(row, public=True, by="local")


async def copy(engine: Engine, row: CheckpointRow, key: str | None = None, owner: str = "ann") -> CheckpointRow:
    return await engine.checkpoints.copy(
        row, owner=owner, project_id="p", idempotency_key=key, ttl_seconds=None, by=owner
    )


async def test_a_copy_shares_its_bytes_and_lives_on_by_itself(
    engine: Engine, backend: FakeBackend, catalog: Catalog, store: FileStore
) -> None:
    live = await made_run(engine)
    backend.runs[RUN].weight = 42
    row = await saved(engine, live, 1, ttl_seconds=3600, user_metadata={"loss": "1"})

    copied = await copy(engine, row)

    assert (copied.owner, copied.name, copied.kind, copied.user_metadata) == ("ann", "a", "weights", {"loss": "1"})
    assert copied.run_id != row.run_id
    assert copied.expires_at is None
    assert store.path(copied.archive).samefile(store.path(row.archive))
    run = await catalog.runs.get(copied.run_id)
    assert (run.state, run.owner, run.project_id) == ("unloaded", "ann", "p")
    assert (await catalog.sessions.get(run.session_id)).is_finished
    await delete(engine, row)
    assert "path" in await answer(engine, await engine.training.load(live, 2, copied, with_optimizer=False))
    assert backend.runs[RUN].weight == 42


async def test_a_copy_asked_for_again_is_the_same_copy(engine: Engine) -> None:
    row = await saved(engine, await made_run(engine), 1)

    copies = await asyncio.gather(*(copy(engine, row, "key") for _ in range(8)))

    assert len({each.save_id for each in copies}) == 1
    assert len(archives_of(engine)) == 2
    assert (await copy(engine, row, "other")).save_id != copies[0].save_id
    assert (await copy(engine, row, "key", owner="bob")).owner == "bob"


async def test_a_copy_that_cannot_be_listed_leaves_no_archive(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock) as engine:
        row = await saved(engine, await made_run(engine), 1)
        asked = {"owner": "ann", "project_id": None, "idempotency_key": "key", "ttl_seconds": 3600.0, "by": "ann"}
        copied = await engine.checkpoints.copy(row, **asked)  # type: ignore[arg-type]  # the values are of all types
        clock.pass_seconds(3601)  # expired, and not swept yet

        with pytest.raises(CheckpointRowExists):
            await engine.checkpoints.copy(row, **asked)  # type: ignore[arg-type]  # as above

        assert archives_of(engine) == {row.archive, copied.archive}


async def test_a_copy_of_what_lost_its_bytes_is_refused_and_told(
    engine: Engine, catalog: Catalog, store: FileStore
) -> None:
    row = await saved(engine, await made_run(engine), 1)
    store.path(row.archive).unlink()

    with pytest.raises(RowMissing, match="not in the store"):
        await copy(engine, row)

    assert (await catalog.checkpoints.get(RUN, "weights", "a", now=NOW)).state == "damaged"


async def test_a_copy_has_the_seal_of_what_it_was_made_from(engine: Engine) -> None:
    row = await saved(engine, await made_run(engine), 1)

    copied = await engine.checkpoints.copy(row, owner="ben", project_id=None, by="ben")

    assert copied.seal == row.seal is not None
