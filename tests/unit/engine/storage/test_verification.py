"""What reading a checkpoint in full finds: damage, seals, and the latest that can be used."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import update

from chockstone.catalog import Catalog, CheckpointRow, RowMissing
from chockstone.catalog import schema as tables
from chockstone.checkpoints.errors import DamagedArchive, StoreDenied, StoreError, StoreUnreachable
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.engine.engine import Engine
from chockstone.engine.samples.sampling import SamplerSource
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.wire.failures import BadRequest, ServerFailure
from chockstone.wire.paths import Kind
from support.engine.fake_backend import FakeBackend
from support.engine.making import (
    NOW,
    RUN,
    Clock,
    answer,
    flip_a_byte,
    made_run,
    make_run,
    names,
    save,
    saved,
    started,
)


async def test_a_load_that_finds_damage_marks_the_checkpoint(engine: Engine, catalog: Catalog) -> None:
    live = await made_run(engine)
    row = await saved(engine, live, 1)
    flip_a_byte(engine, row)

    told = await answer(engine, await engine.training.load(live, 2, row, with_optimizer=False))
    again = await answer(engine, await engine.training.load(live, 3, row, with_optimizer=False))

    found = await catalog.checkpoints.get(RUN, "weights", "a", now=NOW)
    assert found.state == "damaged"
    assert (found.damage or "").startswith("block 0")
    assert told["category"] == "server"
    assert again["category"] == "user" and "is damaged: block 0" in again["error"]
    assert await names(engine) == {"a"}, "it stays listed"
    await engine.audit.flush()
    assert "checkpoint_damaged" in [row.event for row in await engine.catalog.audit.list(None)]


async def test_a_load_that_finds_nothing_marks_the_checkpoint(
    engine: Engine, catalog: Catalog, store: FileStore
) -> None:
    row = await saved(engine, await made_run(engine), 1)
    store.path(row.archive).unlink()

    told = await answer(engine, await make_run(engine, 1, source=row))

    assert told["category"] == "user"
    found = await catalog.checkpoints.get(RUN, "weights", "a", now=NOW)
    assert (found.state, found.damage) == ("damaged", "its archive is not in the store")


async def test_a_sampler_that_finds_damage_marks_the_checkpoint(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    from chockstone.wire.failures import ServerFailure

    row = await saved(engine, await made_run(engine), 1, kind=Kind.SAMPLER_WEIGHTS)
    await catalog.samplers.create(
        "s", 0, owner="local", base_model="tiny", model_path=row.path, archive=row.archive, now=NOW
    )
    backend.fail_next(
        "sample", ServerFailure("the checkpoint cannot be loaded: block 7", code="damaged", reason="block 7")
    )

    await engine.sampling.submit(SamplerSource("s:sample:0", "local", "tiny", row.archive), 0, b"x", num_samples=1)
    await engine.sampling.drained()

    async with asyncio.timeout(10):
        while (await catalog.checkpoints.get(RUN, "sampler_weights", "a", now=NOW)).damage != "block 7":
            await asyncio.sleep(0.001)


async def test_verifying_writes_down_what_it_found(engine: Engine, store: FileStore) -> None:
    row = await saved(engine, await made_run(engine), 1)
    good = await engine.verifier.verify(row)
    content = store.path(row.archive).read_bytes()
    flip_a_byte(engine, row)
    bad = await engine.verifier.verify(good)
    store.path(row.archive).write_bytes(content)
    mended = await engine.verifier.verify(bad)

    assert (good.state, good.verified_at) == ("ready", NOW)
    assert bad.state == "damaged" and bad.damage
    assert (mended.state, mended.damage) == ("ready", None)
    await engine.checkpoints.delete([row], by="local")
    with pytest.raises(RowMissing):
        await engine.verifier.verify(row)


async def five(engine: Engine, clock: Clock) -> list[CheckpointRow]:
    live = await made_run(engine)
    rows = []
    for number in range(5):
        clock.pass_seconds(1)
        rows.append(await saved(engine, live, None, f"n{number}"))
    return rows


async def test_the_latest_is_the_newest_that_verifies_and_says_what_it_walked_past(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, store: FileStore
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock) as engine:
        rows = await five(engine, clock)
        flip_a_byte(engine, rows[4])
        store.path(rows[3].archive).unlink()

        first = await engine.verifier.latest(RUN, "weights")
        again = await engine.verifier.latest(RUN, "weights")

        assert first.row.name == "n2"
        assert [each.path for each in first.skipped] == [rows[4].path, rows[3].path]
        assert first.skipped[0].reason.startswith("block 0")
        assert first.skipped[1].reason == "its archive is not in the store"
        assert again.row.name == "n2" and again.skipped == first.skipped
        assert {row.name: row.state for row in await catalog.checkpoints.list_by_run(RUN, now=clock.now)} == {
            "n4": "damaged",
            "n3": "damaged",
            "n2": "ready",
            "n1": "ready",
            "n0": "ready",
        }


async def test_the_latest_is_read_once_however_many_ask(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock) as engine:
        rows = await five(engine, clock)
        read: list[str] = []
        original = storage.verify

        async def count(archive: str, *, bytes_per_second: float | None = None, seal: str | None = None) -> str:
            read.append(archive)
            return await original(archive, bytes_per_second=bytes_per_second, seal=seal)

        monkeypatch.setattr(storage, "verify", count)
        await asyncio.gather(*(engine.verifier.latest(RUN, "weights") for _ in range(8)))
        await engine.verifier.latest(RUN, "weights")
        assert read == [rows[4].archive]
        clock.pass_seconds(3600)
        await engine.verifier.latest(RUN, "weights")
        assert read == [rows[4].archive] * 2


async def test_the_latest_is_one_that_the_caller_may_see_of_the_kind_that_was_asked_for(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock) as engine:
        rows = await five(engine, clock)
        flip_a_byte(engine, rows[4])

        found = await engine.verifier.latest(RUN, "weights", allow=lambda row: row.name == "n1")

        assert (found.row.name, found.skipped) == ("n1", ())
        with pytest.raises(RowMissing):
            await engine.verifier.latest(RUN, "sampler_weights")


async def test_there_is_no_latest_when_all_are_damaged(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock) as engine:
        for row in await five(engine, clock):
            flip_a_byte(engine, row)

        with pytest.raises(RowMissing, match="5 are damaged, the newest because block 0") as refused:
            await engine.verifier.latest(RUN, "weights")
        assert refused.value.code == "damaged"
        with pytest.raises(RowMissing) as refused:
            await engine.verifier.latest(RUN, "sampler_weights")
        assert refused.value.code is None, "there was never any"


@pytest.mark.parametrize("error", [StoreUnreachable("503"), StoreDenied("403")])
async def test_an_older_one_is_not_the_latest_while_the_newest_cannot_be_read(
    error: StoreError, backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock) as engine:
        rows = await five(engine, clock)
        flip_a_byte(engine, rows[4])
        original = storage.verify

        async def fail(archive: str, *, bytes_per_second: float | None = None, seal: str | None = None) -> str:
            if archive == rows[3].archive:
                raise error
            return await original(archive, bytes_per_second=bytes_per_second, seal=seal)

        with monkeypatch.context() as patched:
            patched.setattr(storage, "verify", fail)
            with pytest.raises(ServerFailure, match=f"could not be read: {error}"):
                await engine.verifier.latest(RUN, "weights")

        assert (await engine.verifier.latest(RUN, "weights")).row.name == "n3"


async def test_a_fault_on_the_way_is_not_taken_for_damage(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock) as engine:
        await five(engine, clock)
        original = storage.verify
        faults: list[Exception] = [DamagedArchive("block 0 is not what was written")]

        async def fail_once(archive: str, *, bytes_per_second: float | None = None, seal: str | None = None) -> str:
            if faults:
                raise faults.pop()
            return await original(archive, bytes_per_second=bytes_per_second, seal=seal)

        monkeypatch.setattr(storage, "verify", fail_once)

        found = await engine.verifier.latest(RUN, "weights")

        assert (found.row.name, found.row.state, found.skipped) == ("n4", "ready", ())


async def test_nothing_is_saved_as_the_latest(engine: Engine) -> None:
    with pytest.raises(BadRequest):
        await save(engine, await made_run(engine), 1, "latest")


async def test_what_was_walked_past_stands_in_the_result_of_a_load(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock) as engine:
        rows = await five(engine, clock)
        flip_a_byte(engine, rows[4])
        found = await engine.verifier.latest(RUN, "weights")

        told = await answer(engine, await make_run(engine, 1, source=found.row, skipped=found.skipped))

        assert told["path"] == rows[3].path
        [skipped] = told["skipped"]
        assert skipped["path"] == rows[4].path


def exchange(engine: Engine, one: CheckpointRow, other: CheckpointRow) -> None:
    """The archives of two checkpoints, each in the place of the other."""
    store = engine.storage.store
    assert isinstance(store, FileStore)
    first, second = store.path(one.archive), store.path(other.archive)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


async def test_another_archive_in_its_place_is_not_loaded_and_heals_when_it_is_put_back(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock) as engine:
        rows = await five(engine, clock)
        assert all(row.seal for row in rows) and rows[0].size_bytes == rows[1].size_bytes
        exchange(engine, rows[0], rows[1])
        live = engine.runs.get(RUN)
        assert live is not None

        request_id = await engine.training.load(live, None, rows[0], with_optimizer=True)
        promise = engine.futures.get(request_id)
        assert promise is not None
        result = await promise.wait(10)

        assert result is not None and result.is_failure
        assert b"another archive is in its place" in result.body and rows[0].path.encode() in result.body
        marked = await catalog.checkpoints.get_save(rows[0].save_id)
        assert marked is not None and marked.state == "damaged"
        assert (await engine.verifier.verify(rows[1])).state == "damaged"
        exchange(engine, rows[0], rows[1])
        assert (await engine.verifier.verify(marked)).state == "ready"


async def test_a_row_of_before_gets_the_seal_of_what_was_read_in_full_and_no_other_later(
    engine: Engine, catalog: Catalog
) -> None:
    row = await saved(engine, await made_run(engine), 1)
    await catalog._database.write(update(tables.checkpoints).values(seal=None))
    old = await catalog.checkpoints.get_save(row.save_id)
    assert old is not None and old.seal is None

    verified = await engine.verifier.verify(old)

    assert verified.seal == row.seal
    assert await catalog.checkpoints.add_seal(row.save_id, "0" * 64) is None
