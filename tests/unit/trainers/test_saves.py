from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.trainers import FinalSaveFailed, saves
from chockstone.trainers.collector import Collector
from chockstone.trainers.rollouts.generation import PendingGroup
from chockstone.trainers.rollouts.loader import ProblemDraw
from chockstone.trainers.saves import FINAL_ATTEMPTS, TrainerSaver
from chockstone.trainers.snapshot import TrainerProgress, TrainerSnapshot
from support.trainers.fakes import FakeRest, FakeRun, FakeServer, Ledger, config, trainer


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saves, "_FINAL_PAUSE_SECONDS", 0.0)


@asynccontextmanager
async def opened(
    server: FakeServer, store: Path | FileStore, told: list[str] | None = None, **changes: Any
) -> AsyncIterator[TrainerSaver]:
    events = [] if told is None else told
    async with Checkpointer(store) as checkpointer:
        made = TrainerSaver(
            FakeRun(server, "weights"),  # type: ignore[arg-type]
            checkpointer,
            config(**changes),
            Collector(),
            lambda text, *, level="info": events.append(f"{level}: {text}"),
            delete_path=FakeRest(server).delete_checkpoint_from_tinker_path,
        )
        yield made
        await made.close()


def snapshot(step: int, *pending: PendingGroup) -> TrainerSnapshot:
    return TrainerSnapshot.take({}, TrainerProgress(step=step), {}, pending, {})


async def ended(task: asyncio.Task[Any]) -> BaseException | None:
    await asyncio.wait([task])
    return task.exception()


def steps(store: Path) -> list[int | None]:
    return [each.manifest.step if each.manifest else None for each in Checkpointer(store).checkpoints()]


async def test_the_archive_names_what_is_on_the_server(server: FakeServer, tmp_path: Path) -> None:
    async with opened(server, tmp_path, exports=("sampler", "hf")) as made:
        kept = await made.begin(snapshot(4))

    assert set(kept.paths) == {"state", "sampler", "hf"}
    assert sorted(kept.paths.values()) == sorted(server.saved)
    [found] = Checkpointer(tmp_path).checkpoints()
    assert found.manifest is not None
    assert (found.name, found.manifest.step, found.manifest.metadata["paths"]) == (kept.name, 4, kept.paths)
    assert made.newest == kept


async def test_weights_are_those_of_the_moment_it_was_begun(server: FakeServer, tmp_path: Path) -> None:
    async with opened(server, tmp_path) as made:
        held = server.hold("save_state")
        task = made.begin(snapshot(1))
        made._run.optim_step(None)  # type: ignore[arg-type]
        held.set()

        assert server.saved[(await task).paths["state"]] == "weights"


async def test_only_one_save_runs_at_a_time(server: FakeServer, tmp_path: Path) -> None:
    held = server.hold("save_state")
    async with opened(server, tmp_path) as made:
        await made.ready()  # there is none
        first = made.begin(snapshot(1))
        with pytest.raises(AssertionError, match="a save is running"):
            made.begin(snapshot(2))
        waiting = asyncio.create_task(made.ready())
        await server.until("save_state")
        assert not waiting.done()
        held.set()
        await waiting

        assert first.done()


async def test_a_failed_save_is_told_and_tried_again_later_and_later(server: FakeServer, tmp_path: Path) -> None:
    told: list[str] = []
    server.fail("save_state", *(OSError(f"full {number}") for number in range(4)))
    async with opened(server, tmp_path, told, save_every=100) as made:
        retried = []
        for _ in range(4):
            step = retried[-1] if retried else 100
            assert str(await ended(made.begin(snapshot(step)))) == f"full {len(retried)}"
            retried.append(next(later for later in range(step, 1000) if later > step and made.is_due(later)))
        await made.begin(snapshot(retried[-1]))

        assert retried == [101, 103, 107, 115]
        assert told[0] == "error: the checkpoint of step 100 failed and will be tried again at step 101: full 0"
        assert not any(made.is_due(step) for step in range(116, 200))
        assert made._collector.drain()["saves/failed"].count == 4
    assert steps(tmp_path) == [115]


async def test_the_pause_is_never_longer_than_the_next_regular_save_is_away(server: FakeServer, tmp_path: Path) -> None:
    server.fail("save_state", *(OSError() for _ in range(9)))
    async with opened(server, tmp_path, save_every=3) as made:
        for step in range(9):
            await ended(made.begin(snapshot(step)))

        assert made.is_due(8 + 3)


@pytest.mark.parametrize("failing", ["save_state", "save_sampler", "archive"])
async def test_what_a_failed_save_leaves_behind_is_deleted(
    failing: str, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if failing == "archive":
        monkeypatch.setattr(FileStore, "begin", raises(OSError("full")))
    server.fail(failing, OSError("full"))
    async with opened(server, tmp_path, exports=("sampler", "hf")) as made:
        error = await ended(made.begin(snapshot(1)))

    assert isinstance(error, Exception) and "full" in str(error)
    assert server.saved == {}
    assert steps(tmp_path) == []


async def test_leftovers_that_cannot_be_deleted_are_deleted_after_the_next_save(
    server: FakeServer, tmp_path: Path
) -> None:
    told: list[str] = []
    server.fail("save_sampler", OSError("full"))
    server.fail("delete", OSError("away"), OSError("away"))
    async with opened(server, tmp_path, told, exports=("sampler", "hf")) as made:
        await ended(made.begin(snapshot(1)))
        assert len(server.saved) == 2
        kept = await made.begin(snapshot(2))

    assert "warning: the leftovers of a failed save could not be deleted: away" in told
    assert set(server.saved) == set(kept.paths.values())


async def test_a_save_that_is_given_up_never_leaves_an_archive_without_weights(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = asyncio.Event()
    loop, begin = asyncio.get_running_loop(), FileStore.begin

    def noting(*values: Any) -> Any:
        loop.call_soon_threadsafe(writing.set)
        return begin(*values)

    monkeypatch.setattr(FileStore, "begin", noting)
    async with opened(server, tmp_path) as made:
        task = made.begin(snapshot(1))
        await writing.wait()
        await made.close()  # the archive may be durable all the same
        assert task.cancelled()

    for found in Checkpointer(tmp_path).checkpoints():
        assert found.manifest is not None
        assert set(found.manifest.metadata["paths"].values()) <= set(server.saved)
    assert server.saved  # it was asked for before


class Noting(FileStore):
    def __init__(self, root: Path, server: FakeServer) -> None:
        super().__init__(root)
        self._server = server

    def delete(self, name: str) -> None:
        super().delete(name)
        self._server.calls.append(f"delete {name}")


async def test_old_ones_are_deleted_archive_first(server: FakeServer, tmp_path: Path) -> None:
    async with opened(server, Noting(tmp_path, server), keep=2, exports=("sampler",)) as made:
        for step in range(1, 4):
            await made.begin(snapshot(step))

    assert server.calls[-3:] == ["delete step-00000001", "delete", "delete"]
    assert steps(tmp_path) == [2, 3]
    assert sorted(path[-1] for path in server.saved) == ["2", "2", "3", "3"]


async def test_old_ones_that_cannot_be_deleted_are_told_and_deleted_later(server: FakeServer, tmp_path: Path) -> None:
    told: list[str] = []
    server.fail("delete", OSError("away"))
    async with opened(server, tmp_path, told, keep=1) as made:
        for step in (1, 2):
            await made.begin(snapshot(step))
        assert told[-1] == "warning: old checkpoints could not be deleted: away"
        assert made.newest is not None and made.newest.step == 2
        await made.begin(snapshot(3))

    assert [path[-1] for path in server.saved] == ["3"]


async def test_checkpoints_of_others_in_the_store_are_left_alone(server: FakeServer, tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as other:
        other.save({"x": 1}, step=0, name="mine").result()
    async with opened(server, tmp_path, keep=1) as made:
        for step in (1, 2):
            await made.begin(snapshot(step))

    assert {found.name for found in Checkpointer(tmp_path).checkpoints()} == {"mine", "step-00000002"}


async def test_the_final_save_is_retried(server: FakeServer, tmp_path: Path) -> None:
    server.fail("save_state", *(OSError("full") for _ in range(FINAL_ATTEMPTS - 1)))
    async with opened(server, tmp_path) as made:
        kept = await made.final(lambda: snapshot(7))

    assert kept.step == 7
    assert steps(tmp_path) == [7]


async def test_a_final_save_that_fails_every_time_says_what_there_is(server: FakeServer, tmp_path: Path) -> None:
    async with opened(server, tmp_path) as made:
        await made.begin(snapshot(6))
        server.fail("save_state", *(OSError("full") for _ in range(FINAL_ATTEMPTS)))
        with pytest.raises(FinalSaveFailed, match="step 7 .* the newest checkpoint is of step 6. The last error: full"):
            await made.final(lambda: snapshot(7))


async def test_the_final_save_is_the_one_that_runs_if_it_is_of_the_last_step(
    server: FakeServer, tmp_path: Path
) -> None:
    held = server.hold("save_state")
    async with opened(server, tmp_path) as made:
        made.begin(snapshot(7))
        final = asyncio.create_task(made.final(lambda: snapshot(7)))
        await server.until("save_state")
        held.set()

        assert (await final).step == 7
        assert server.calls.count("save_state") == 1


async def test_a_save_waits_for_the_rollouts_in_its_cut(server: FakeServer, tmp_path: Path) -> None:
    pending = PendingGroup(ProblemDraw(0, 0, 0), is_begun=True)
    async with opened(server, tmp_path) as made:
        task = made.begin(snapshot(1, pending))
        while not server.answered["save_state"]:
            await asyncio.sleep(0.001)
        assert not task.done() and steps(tmp_path) == []
        pending.group.cancel()

        await task
    assert steps(tmp_path) == [1]


def tickets(server: FakeServer) -> asyncio.Semaphore:
    """One for each group that may be generated."""
    given = asyncio.Semaphore(0)

    async def pace(what: str) -> None:
        if what == "sample":
            await given.acquire()

    server.pace = pace
    return given


async def give(given: asyncio.Semaphore, count: int) -> None:
    for _ in range(count):
        given.release()


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)


async def test_generation_goes_on_while_a_step_waits_for_the_save_before_its_own(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    given, held = tickets(server), server.hold("save_state")
    task = asyncio.create_task(trainer(tmp_path, ledger, staleness=3, save_every=1).run())
    await give(given, 4)  # two batches
    await until(lambda: ledger.steps == [1, 2])
    await until(lambda: server.reached["save_state"] == 1)
    assert server.answered["sample"] == 4
    await give(given, 4)
    await until(lambda: server.answered["sample"] == 8)

    assert ledger.steps == [1, 2] and server.reached["save_state"] == 1  # all the while
    held.set()
    await give(given, 99)
    await task
    assert ledger.steps == [1, 2, 3, 4, 5, 6]
    assert ledger.metrics[3]["time/wait_for_save"] > 0


async def test_saves_that_fail_never_end_training_nor_change_it(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    undisturbed = Ledger()
    await trainer(tmp_path / "undisturbed", undisturbed).run()
    server.fail("save_state", *(OSError("full") for _ in range(5)))

    outcome = await trainer(tmp_path / "failing", ledger, save_every=1).run()

    assert outcome.checkpoint.step == 6
    assert ledger.rows == undisturbed.rows
    assert len([event for event in ledger.events if event.startswith("error") and "full" in event]) == 5


def raises(error: Exception) -> Callable[..., Any]:
    def call(*values: Any, **options: Any) -> Any:
        raise error

    return call
