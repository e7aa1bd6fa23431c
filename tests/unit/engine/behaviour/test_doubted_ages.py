"""While the time is in doubt, nothing is deleted because of its age; once it is trusted, all of it is."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from chockstone.catalog import Catalog
from chockstone.checkpoints import Retention
from chockstone.engine.engine import Engine
from chockstone.engine.ownership.data_directory import RUN_JOURNALS
from chockstone.engine.storage.archive_storage import ArchiveStorage
from support.engine.fake_backend import FakeBackend
from support.engine.making import NOW, RUN, Clock, answer, archives_of, data_of, made_run, save, saved, started, until

DAY = 86400.0


class Time(Clock):
    """The clock of an engine, in which it may not believe."""

    is_trusted = True
    steady = 0.0


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def engine(backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, time: Time) -> AsyncIterator[Engine]:
    async with started(
        backend,
        catalog,
        storage,
        clock=time,
        trusts_ages=lambda: time.is_trusted,
        monotonic=lambda: time.steady,
        trash_seconds=DAY,
        retention=Retention(ttl_seconds=10 * DAY),
    ) as engine:
        yield engine


async def test_checkpoints_and_trash_stay_until_the_time_is_trusted(engine: Engine, time: Time) -> None:
    live = await made_run(engine)
    await saved(engine, live, 1, "too-old")
    await saved(engine, live, 2, "expired", ttl_seconds=3600)
    time.pass_seconds(1)
    await saved(engine, live, 3, "newest")
    [trashed] = await engine.checkpoints.delete([await saved(engine, live, 4, "trashed")], by="ann")
    everything = archives_of(engine)

    time.is_trusted = False
    time.pass_seconds(40 * DAY)
    assert not (await engine.sweeper.sweep_what_changed()).removed
    assert not (await engine.sweeper.sweep()).removed
    foretold = await engine.sweeper.sweep(dry_run=True)
    assert not foretold.removed and not foretold.purged
    assert not await engine.checkpoints.purge_due()
    assert archives_of(engine) == everything

    time.is_trusted = True
    report = await engine.sweeper.sweep()

    assert {each.path.rpartition("/")[2] for each in report.removed} == {"too-old", "expired"}
    assert trashed.archive not in archives_of(engine)


async def test_half_written_files_stay_until_the_time_is_trusted(engine: Engine, time: Time) -> None:
    partial = data_of(engine.storage) / "checkpoints" / ".partial" / "x-0123.tar"
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(b"half")
    os.utime(partial, (0, 0))

    time.is_trusted = False
    time.pass_seconds(500 * DAY)
    engine.sweeper.look_at_everything()
    await engine.sweeper.sweep_what_changed()
    assert partial.exists()

    time.is_trusted = True
    engine.sweeper.look_at_everything()
    await engine.sweeper.sweep_what_changed()
    assert not partial.exists()


async def test_a_silent_session_keeps_what_brings_its_runs_back(
    engine: Engine, backend: FakeBackend, catalog: Catalog, time: Time
) -> None:
    live = await made_run(engine)
    await answer(engine, await engine.training.optim_step(live, 1, {}))
    journal = data_of(engine.storage) / RUN_JOURNALS / RUN.replace(":", ".")

    time.is_trusted = False
    time.pass_seconds(40 * DAY)
    time.steady += 40 * DAY
    await engine.sessions.end_silent()
    assert (await catalog.runs.get(RUN)).state == "parked"
    assert journal.is_dir() and backend.archives
    assert not (await catalog.sessions.get("s")).is_finished

    time.is_trusted = True
    await engine.sessions.end_silent()
    await until(lambda: not backend.archives and not journal.exists())


async def test_silence_is_measured_by_the_steady_clock(engine: Engine, catalog: Catalog, time: Time) -> None:
    await made_run(engine)
    engine.presence.saw_session("s")

    time.pass_seconds(40 * DAY)  # and a day has passed, which made it the time
    time.steady += DAY
    await engine.sessions.end_silent()

    assert not (await catalog.sessions.get("s")).is_finished


async def test_journals_of_ended_runs_stay_until_the_time_is_trusted(engine: Engine, time: Time) -> None:
    live = await made_run(engine)
    await answer(engine, await save(engine, live, 1))
    journal = data_of(engine.storage) / RUN_JOURNALS / RUN.replace(":", ".")
    await engine.sessions.finish("s")
    await until(lambda: not len(engine.runs))
    os.utime(journal, (0, 0))

    time.is_trusted = False
    await engine._core.unloader.sweep()
    assert journal.is_dir()

    time.is_trusted = True
    await engine._core.unloader.sweep()
    assert not journal.exists()
    assert time() == NOW
