from __future__ import annotations

import asyncio
import logging

import pytest

from chockstone.catalog import Catalog, CheckpointRow
from chockstone.checkpoints.errors import StoreUnreachable
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.engine.config import StorageRules
from chockstone.engine.engine import Engine
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.scrub import ScrubResult
from support.engine.fake_backend import FakeBackend
from support.engine.making import RUN, Clock, data_of, flip_a_byte, made_run, saved, started, until

WEEK = 7 * 86_400.0


async def states(catalog: Catalog, clock: Clock) -> dict[str, str]:
    return {row.name: row.state for row in await catalog.checkpoints.list_by_run(RUN, now=clock.now)}


async def test_a_flipped_byte_is_found_and_told(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock) as engine:
        live = await made_run(engine)
        rows = [await saved(engine, live, number, f"n{number}") for number in range(1, 4)]
        flip_a_byte(engine, rows[1])
        assert await engine.scrub.check_some() == 0, "they are new"
        assert engine.scrub.report() == ScrubResult()
        clock.pass_seconds(WEEK + 1)

        assert await engine.scrub.check_some() == 3

        assert await states(catalog, clock) == {"n1": "ready", "n2": "damaged", "n3": "ready"}
        assert engine.scrub.report() == ScrubResult(checked=3, damaged=1, last_at=clock.now)
        good = await catalog.checkpoints.get(RUN, "weights", "n1", now=clock.now)
        assert good.verified_at == clock.now
        assert await engine.scrub.check_some() == 0, "they were read a moment ago"
        clock.pass_seconds(WEEK + 1)
        assert await engine.scrub.check_some() == 2


async def test_a_missing_archive_is_found_and_a_deleted_one_is_not(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock) as engine:
        live = await made_run(engine)
        lost, deleted = await saved(engine, live, 1, "lost"), await saved(engine, live, 2, "deleted")
        store.path(lost.archive).unlink()
        clock.pass_seconds(WEEK + 1)
        original = catalog.checkpoints.list_unverified

        async def then_delete(**more: object) -> tuple[CheckpointRow, ...]:
            rows = await original(**more)  # type: ignore[arg-type]  # passed on as it came
            await engine.checkpoints.delete([deleted], by="local")
            return rows

        monkeypatch.setattr(catalog.checkpoints, "list_unverified", then_delete)

        assert await engine.scrub.check_some() == 1
        assert await states(catalog, clock) == {"lost": "damaged"}


async def test_a_store_that_does_not_answer_damages_nothing(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock) as engine:
        await saved(engine, await made_run(engine), 1)
        clock.pass_seconds(WEEK + 1)

        async def unreachable(archive: str, *, bytes_per_second: float | None = None, seal: str | None = None) -> str:
            raise StoreUnreachable("timed out")

        monkeypatch.setattr(storage, "verify", unreachable)

        assert await engine.scrub.check_some() == 0
        assert await states(catalog, clock) == {"a": "ready"}


async def test_the_background_reads_at_its_rate(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float | None] = []
    original = storage.verify

    async def note(archive: str, *, bytes_per_second: float | None = None, seal: str | None = None) -> str:
        rates.append(bytes_per_second)
        return await original(archive, bytes_per_second=bytes_per_second, seal=seal)

    monkeypatch.setattr(storage, "verify", note)
    clock = Clock()
    async with started(backend, catalog, storage, clock=clock) as engine:
        await saved(engine, await made_run(engine), 1)
    clock.pass_seconds(WEEK + 1)
    async with started(backend, catalog, storage, clock=clock, scrub_bytes_per_second=1 << 30) as engine:
        async with asyncio.timeout(10):
            while engine.scrub.report().checked < 1:
                await asyncio.sleep(0.001)

    assert rates == [1 << 30]


async def test_what_becomes_due_is_read_soon_and_each_pass_is_told_once(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "chockstone.engine.storage.scrub")
    clock = Clock()
    async with started(
        backend, catalog, storage, clock=clock, scrub_every_seconds=1.0, scrub_bytes_per_second=1 << 30
    ) as engine:
        live = await made_run(engine)
        rows = [await saved(engine, live, number, f"n{number}") for number in range(1, 3)]
        flip_a_byte(engine, rows[1])
        clock.pass_seconds(2)
        await until(lambda: "scrub pass finished checked=2 damaged=1" in caplog.text)
        clock.pass_seconds(2)
        await until(lambda: "scrub pass finished checked=1 damaged=0" in caplog.text)

    assert caplog.text.count("scrub pass finished") == 2
    assert engine.scrub.report() == ScrubResult(checked=3, damaged=1, last_at=clock.now)


@pytest.mark.parametrize(("every", "pause"), [(WEEK, 300.0), (400.0, 100.0), (0.0, 0.1)])
def test_the_pause_is_a_part_of_how_often_each_is_read(
    catalog: Catalog, storage: ArchiveStorage, backend: FakeBackend, every: float, pause: float
) -> None:
    engine = Engine(
        backend, catalog, storage, data=data_of(storage), rules=StorageRules(scrub_every_seconds=every), now=Clock()
    )

    assert engine.scrub.pause_seconds == pause


async def test_a_scrub_can_be_switched_off(backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage) -> None:
    async with started(backend, catalog, storage, scrub_bytes_per_second=0) as engine:
        await asyncio.wait_for(engine.scrub.keep(), 10)

        assert engine.scrub.report() == ScrubResult()
