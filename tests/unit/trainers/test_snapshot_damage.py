"""A trainer skips an archive that does not hold the state of a trainer, and refuses the state of another loader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.trainers import (
    ResumeRefused,
)
from chockstone.trainers.rollouts.loader import ShuffledLoader
from chockstone.trainers.snapshot import KIND
from support.trainers.fakes import FakeServer, Ledger, trainer

State = dict[str, Any]


def without(*path: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        *way, last = path
        for name in way:
            state = state[name]
        del state[last]

    return change


def with_value(value: Any, *path: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        *way, last = path
        for name in way:
            state = state[name]
        state[last] = value

    return change


BROKEN = {
    "empty": lambda state: state.clear(),
    "no trainer": without("trainer"),
    "trainer is a text": with_value("text", "trainer"),
    "no version": without("trainer", "version"),
    "version is a text": with_value("1", "trainer", "version"),
    "identity is a list": with_value([], "trainer", "identity"),
    "no tally": without("trainer", "tally"),
    "tally of more": with_value(1, "trainer", "tally", "more"),
    "step is a text": with_value("4", "trainer", "tally", "step"),
    "step is a fraction": with_value(4.5, "trainer", "tally", "step"),
    "step is negative": with_value(-4, "trainer", "tally", "step"),
    "seconds are not finite": with_value(float("nan"), "trainer", "tally", "seconds"),
    "best reward is not finite": with_value(float("inf"), "trainer", "tally", "best_reward"),
    "no path": without("trainer", "paths", "state"),
    "path is a number": with_value(7, "trainer", "paths", "state"),
    "paths are a list": with_value([], "trainer", "paths"),
    "draw of two": with_value([[1, 2]], "trainer", "draws"),
    "draw of texts": with_value([["1", "2", "3"]], "trainer", "draws"),
    "draw of negatives": with_value([[1, 0, -1]], "trainer", "draws"),
    "groups of no draw": with_value([], "trainer", "draws"),
    "no rollouts": without("rollouts"),
    "no tokens": without("rollouts", "tokens"),
    "tokens too short": lambda state: cut_short(state["rollouts"]["tokens"]),
    "lengths negative": lambda state: cut_short(state["rollouts"]["tokens"], by=-100),
    "logprobs of another shape": lambda state: lengthen(state["rollouts"]["logprobs"]),
    "rewards missing": with_value(np.zeros(0), "rollouts", "rewards"),
    "rewards are a list": with_value([1.0, 2.0], "rollouts", "rewards"),
    "version of a group is a text": lambda state: state["rollouts"]["versions"].__setitem__(0, "1"),
    "sizes too small": lambda state: state["rollouts"]["sizes"].__setitem__(0, 1),
    "no loader": without("loader"),
    "loader is a number": with_value(3, "loader"),
    "no extra": without("extra"),
}


def cut_short(joined: State, by: int = 1) -> None:
    joined["lengths"] = joined["lengths"].copy()
    joined["lengths"][0] -= by


def lengthen(joined: State) -> None:
    joined["lengths"] = joined["lengths"].copy()
    joined["lengths"][0] += 1
    joined["values"] = np.append(joined["values"], np.float32(0))


async def rewrite(home: Path, step: int, change: Callable[[State], None]) -> None:
    async with Checkpointer(home, prefix="trainer") as checkpointer:
        name = f"step-{step:08d}"
        state = checkpointer.load(name=name)
        change(state)
        await (await checkpointer.save_async(state, name=name, step=step, kind=KIND, overwrite=True))


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
async def test_an_archive_that_holds_something_else_is_walked_past(
    change: Callable[[State], None], server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    await trainer(tmp_path, ledger).run()
    undisturbed = ledger.order
    Checkpointer(tmp_path).store.delete("trainer/step-00000006")
    await rewrite(tmp_path, 4, change)

    outcome = await trainer(tmp_path, ledger).run()

    assert outcome.resumed_from == 2
    assert any("'trainer/step-00000004' skipped" in event for event in ledger.events)
    assert ledger.order == undisturbed


@pytest.mark.parametrize(
    "change",
    [
        without("loader", "count"),
        without("loader", "drawn"),
        without("loader", "order"),
        with_value(-1, "loader", "drawn"),
        with_value(np.zeros(7, np.int64), "loader", "order"),
        with_value(np.arange(3), "loader", "order"),
        with_value("text", "loader", "order"),
    ],
)
async def test_a_state_that_is_no_loaders_is_refused(
    change: Callable[[State], None], server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    def shuffled() -> ShuffledLoader:
        return ShuffledLoader(7, seed=0)

    await trainer(tmp_path, ledger, loader=shuffled()).run()
    await rewrite(tmp_path, 6, change)

    with pytest.raises(ResumeRefused, match="the state is"):
        await trainer(tmp_path, ledger, loader=shuffled(), steps=8).run()
