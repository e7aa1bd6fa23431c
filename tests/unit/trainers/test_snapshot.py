"""Wherever a life ends, the next one trains on what an undisturbed run would have trained on."""

from __future__ import annotations

import asyncio
import copy
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.trainers.errors import ResumeRefused
from chockstone.trainers.rollouts.generation import PendingGroup
from chockstone.trainers.rollouts.loader import ProblemDraw, ShuffledLoader
from chockstone.trainers.rollouts.rollouts import RolloutGroup
from chockstone.trainers.snapshot import VERSION, TrainerProgress, TrainerSnapshot, read_state
from support.trainers.fakes import Digits, FakeServer, Ledger, run_on_turning_loop, trainer
from unit.trainers.rollouts.test_rollouts import group, sample

MODES: list[dict[str, Any]] = [
    {"staleness": 0},
    {"staleness": 1},
    {"staleness": 3},
    {"staleness": 0, "concurrency": 2},
    {"staleness": 1, "concurrency": 2},
    {"staleness": 3, "concurrency": 2},
]
DRAWS = [ShuffledLoader(7, seed=0)] * 8
UNDISTURBED = [f"{draw.epoch}/p{draw.index}/{number}" for draw in (each.draw() for each in DRAWS) for number in (0, 1)]
by_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode.values())))


class Counting(Digits):
    """Has a state of its own, which its trainer keeps and which goes on changing."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {"problems": 0}

    def problem(self, index: int) -> Any:
        self.counts["problems"] += 1
        return super().problem(index)

    def state_dict(self) -> dict[str, int]:
        return self.counts

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.counts = dict(state)


@dataclass
class World:
    """All that outlives a process."""

    home: Path
    server: FakeServer
    ledger: Ledger

    @classmethod
    def new(cls, home: Path) -> World:
        home.mkdir(parents=True)
        return cls(home, FakeServer(), Ledger())

    def copied(self, home: Path) -> World:
        shutil.copytree(self.home, home, copy_function=_copy_if_there)
        world = World(home, FakeServer(), Ledger())
        world.server.saved = dict(self.server.saved)
        world.server.runs = self.server.runs
        world.ledger.rows = list(self.ledger.rows)
        return world

    def looks(self) -> object:
        files = tuple(sorted((str(path), path.stat().st_ino) for path in self.home.rglob("*.tar")))
        return files, frozenset(self.server.saved), len(self.ledger.rows)

    def live(
        self, patch: pytest.MonkeyPatch, mode: dict[str, Any], cancel_after: tuple[int, ...] = (), **more: Any
    ) -> Any:
        """A life; its outcome, or None if it was cancelled."""
        self.server.install(patch)

        async def main() -> Any:
            return await trainer(
                self.home, self.ledger, environment=Counting(), **{"steps": 4, "keep": 1} | mode | more
            ).run()

        return run_on_turning_loop(main(), cancel_after)


def _copy_if_there(source: str, target: str) -> str:
    try:
        return shutil.copy(source, target)
    except FileNotFoundError:  # deleted by the trainer meanwhile
        return target


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@by_mode
def test_killed_between_any_two_changes_of_what_outlives_it(
    mode: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.new(tmp_path / "undisturbed")
    pictures: dict[object, World] = {}

    async def watch(what: str) -> None:  # whenever something is asked for
        while what == "save_state" and world.ledger.steps == [1, 2]:
            await asyncio.sleep(0)  # until generation has drawn more than the snapshot holds
        if (looks := world.looks()) not in pictures:
            pictures[looks] = world.copied(tmp_path / f"{len(pictures)}")

    world.server.pace = watch
    outcome, _ = world.live(monkeypatch, mode, steps=6)
    steps = set()
    for picture in pictures.values():
        resumed, _ = picture.live(monkeypatch, mode, steps=6)
        steps.add(resumed.resumed_from)

        assert picture.ledger.order == world.ledger.order
        assert len(set(world.ledger.order)) == len(world.ledger.order) == 6 * 2 * 2
        assert resumed.progress.samples == outcome.progress.samples
        if "concurrency" not in mode:  # then who generates what is not a matter of time
            assert picture.ledger.rows == world.ledger.rows
            assert resumed.progress.best_reward == outcome.progress.best_reward

    assert {None, 2, 4} <= steps


def check_cancelled(world: World, patch: pytest.MonkeyPatch, mode: dict[str, Any], at: tuple[int, ...]) -> bool:
    """Cancel, go on, compare; whether it was cancelled at all."""
    outcome, _ = world.live(patch, mode, at)
    if outcome is not None:
        return False
    done, has_begun = list(world.ledger.steps), "sync" in world.server.calls
    kept = [each.manifest.step for each in Checkpointer(world.home).checkpoints() if each.manifest]
    if len(at) == 1 and has_begun:
        assert kept[-1:] == [done[-1] if done else 0]  # a last checkpoint, of the last step that was made
    resumed, _ = world.live(patch, mode)

    assert resumed.resumed_from == (kept[-1] if kept else None)
    assert [sample_id for _, sample_id in world.ledger.order] == UNDISTURBED
    assert [row["step"] for row in world.ledger.rows] == [step for step in range(1, 5) for _ in range(4)]
    assert max(row["staleness"] for row in world.ledger.rows) <= mode["staleness"]
    return True


@by_mode
def test_cancelled_at_any_turn_of_the_loop(
    mode: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = MODES.index(mode) + 1
    while check_cancelled(World.new(tmp_path / f"{turn}"), monkeypatch, mode, (turn,)):
        turn += 12

    assert turn > 60  # then it was over


@by_mode
def test_cancelled_again_while_it_saves_what_it_has(
    mode: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first, second in [(25, 26), (30, 33), (40, 48), (50, 51), (60, 62)]:
        check_cancelled(World.new(tmp_path / f"{first}"), monkeypatch, mode, (first, second))


@pytest.mark.soak
@by_mode
@pytest.mark.parametrize("again", [None, 1, 2, 3, 5, 8, 13])
def test_cancelled_at_every_turn_of_the_loop(
    again: int | None, mode: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for turn in range(1, 200):
        at = (turn,) if again is None else (turn, turn + again)
        check_cancelled(World.new(tmp_path / f"{turn}"), monkeypatch, mode, at)


def test_a_chain_of_lives_that_each_end_early_trains_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.new(tmp_path / "world")
    lives = 1
    while world.live(monkeypatch, MODES[1], (35 + lives,))[0] is None:
        lives += 1

    assert lives > 2
    assert [sample_id for _, sample_id in world.ledger.order] == UNDISTURBED


async def test_what_changes_after_a_cut_is_not_in_it() -> None:
    progress, loader, extra = TrainerProgress(step=3, evaluation={"a": 1.0}), {"drawn": [1]}, {"mine": {"list": [1]}}
    snapshot = TrainerSnapshot.take({"seed": 1}, progress, loader, (), extra)
    before = copy.deepcopy(await snapshot.state({"state": "tinker://a"}))

    progress.step, progress.evaluation["a"] = 4, 2.0
    loader["drawn"].append(2)
    extra["mine"]["list"].append(2)

    after = await snapshot.state({"state": "tinker://a"})
    assert (after["trainer"], after["loader"], after["extra"]) == (before["trainer"], before["loader"], before["extra"])


async def test_rollouts_that_were_begun_are_waited_for_and_others_are_not() -> None:
    pending = tuple(PendingGroup(ProblemDraw(number, 0, number), is_begun=number < 3) for number in range(4))
    snapshot = TrainerSnapshot.take({}, TrainerProgress(), {}, pending, {})
    pending[3].is_begun = True  # after the snapshot, and with another policy
    pending[0].group.set_result(group(0, sample(1)))
    pending[1].group.cancel()
    waiting = asyncio.create_task(snapshot.state({}))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    pending[2].group.set_result(group(2, sample(2)))

    window = read_state(await waiting, {}).window
    assert [draw.number for draw, _ in window] == [0, 1, 2, 3]
    assert [isinstance(each, RolloutGroup) for _, each in window] == [True, False, True, False]


async def state_of(identity: dict[str, Any]) -> dict[str, Any]:
    return await TrainerSnapshot.take(identity, TrainerProgress(step=3), {}, (), {}).state({"state": "tinker://a"})


async def test_the_state_of_another_run_is_refused_with_every_difference() -> None:
    state = await state_of({"seed": 1, "rank": 4, "old": 1})

    with pytest.raises(ResumeRefused, match="another run: old was 1, is None; rank was 4, is 8. Use the same settings"):
        read_state(state, {"seed": 1, "rank": 8})


async def test_the_state_of_a_later_trainer_is_refused() -> None:
    state = await state_of({})
    state["trainer"]["version"] = VERSION + 1

    with pytest.raises(ResumeRefused, match="later trainer"):
        read_state(state, {})
