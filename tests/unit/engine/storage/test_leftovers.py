from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.backends.protocol import SaveCall
from chockstone.catalog import Catalog, RunState
from chockstone.engine.storage.archive_names import ephemeral_name, recovery_folder
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.leftovers import Leftovers
from support.engine.fake_backend import FakeBackend, Numbers
from support.engine.making import NOW, answer, archives_of, made_run, saved, started


def leave(backend: FakeBackend, *archives: str) -> None:
    """As a killed server does."""
    for archive in archives:
        backend._write(SaveCall(run_id="", archive=archive, kind="sampler_weights"), Numbers(1))


async def test_weights_of_ended_and_unknown_sessions_go_at_the_start_and_living_ones_stay(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    await catalog.sessions.create("ended", owner="local", sdk_version="0.36.0", now=NOW)
    await catalog.sessions.finish("ended", reason="success", now=NOW)
    living = ephemeral_name("s:sample:0")
    leave(backend, living, ephemeral_name("ended:sample:0"), ephemeral_name("ended:sample:11"))
    leave(backend, ephemeral_name("nobody:sample:3"))

    async with started(backend, catalog, storage) as engine:
        await engine.sweeper.sweep_what_changed()

        assert archives_of(engine) == {living}


async def test_a_lost_database_costs_nothing_but_unnamed_weights(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    strangers = {"r.train.0/weights/final.1-abc", "r.train.0/sampler_weights/ephemeral.2-abc", "mine", "ephemeral"}
    alike = {"x.sample.0/weights/ephemeral", "sample.0/ephemeral", "x.sample./ephemeral", "x.sample.0/ephemeral2"}
    leave(backend, *strangers, *alike, ephemeral_name("r:sample:0"))

    async with started(backend, catalog, storage) as engine:
        await engine.sweeper.sweep_what_changed()

        assert archives_of(engine) == strangers | alike


async def test_a_session_that_begins_meanwhile_keeps_its_weights(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(backend, ephemeral_name("nobody:sample:0"))
    original = storage.names

    async def begin_first() -> list[str]:
        await catalog.sessions.create("new", owner="local", sdk_version="0.36.0", now=NOW)
        leave(backend, ephemeral_name("new:sample:0"))
        return await original()

    monkeypatch.setattr(storage, "names", begin_first)

    assert await Leftovers(catalog, storage, journals=tmp_path).free() == 1
    assert set(backend.archives) == {ephemeral_name("new:sample:0")}


async def test_what_is_in_use_stays_hour_after_hour(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    async with started(backend, catalog, storage) as engine:
        live = await made_run(engine)
        row = await saved(engine, live, 1)
        await answer(engine, await engine.training.save_for_sampling(live, 2, 0))
        engine.sweeper.look_at_everything()
        await engine.sweeper.sweep_what_changed()

        assert archives_of(engine) == {row.archive, ephemeral_name("s:sample:0")}


async def test_recovery_archives_of_runs_that_are_over_go_and_others_stay(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, tmp_path: Path
) -> None:
    states: dict[str, RunState] = {"s:train:0": "active", "s:train:1": "parked", "s:train:2": "unloaded"}
    for run_id, state in states.items():
        await catalog.runs.rebuild(run_id, owner="local", base_model="tiny", spec={}, now=NOW, state=state)
    (tmp_path / "x.train.0").mkdir()  # the journal of a run that the catalog has lost
    zero, one, two = (f"{recovery_folder(run_id)}/0001.ab" for run_id in states)
    known, alone = (f"{recovery_folder(run_id)}/0001.ab" for run_id in ("x:train:0", "y:train:0"))
    leave(backend, zero, one, two, known, alone, ephemeral_name("x:sample:0"), ephemeral_name("y:sample:0"))
    freed = []
    leftovers = Leftovers(catalog, storage, journals=tmp_path, on_deleted=freed.append)

    assert await leftovers.free() == 3

    assert set(backend.archives) == {zero, one, known, ephemeral_name("x:sample:0")}
    assert set(freed) == {two, alone, ephemeral_name("y:sample:0")}
