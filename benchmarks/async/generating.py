"""Generating: tokens per second while a state is being saved, against the same program without a save.

Each turn is a window of saves, one after the other, and a window as long without any, in an order that changes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle

from benchmarks.checkpoints.rounds import Action, Metrics, Series
from benchmarks.checkpoints.states import State

from .loop import Loop, repeat, running
from .savers import Saver, new_checkpointer, savers
from .stage import Stage

NOTHING = "no save in either window"


@dataclass(frozen=True, slots=True)
class Window:
    rate: float  # tokens per second
    seconds: float
    actions: int
    cpu_seconds: float  # of this process


def measure_generating(stage: Stage, name: str) -> dict[str, Series]:
    state = stage.scale.states()[name]()
    directory = stage.new_directory()
    with (
        new_checkpointer(directory / "paced", is_paced=True) as paced,
        new_checkpointer(directory / "fast", is_paced=False) as fast,
    ):
        actions = {row: _turns(stage, state, saver) for row, saver in savers(directory, paced, fast).items()}
        actions[NOTHING] = _turns(stage, state, partial(_nothing, stage.scale.window_seconds))
        rows = stage.run_rounds(actions, repeats=stage.scale.rounds)
    stage.titles[stage.measure] = f"{state.title}, {state.size_bytes / 1e6:,.0f} MB"
    return rows


async def _nothing(seconds: float, _loop: Loop) -> None:
    await asyncio.sleep(seconds)


def _turns(stage: Stage, state: State, saver: Saver) -> Action:
    orders = cycle((True, False))  # saves first, or last
    lasted = stage.scale.window_seconds

    async def turn(*, saves_first: bool) -> Metrics:
        nonlocal lasted
        async with running(state, stage.traffic) as loop:
            if not saves_first:
                outside = await _window(loop, partial(asyncio.sleep, lasted), lasted)
            during = await _window(loop, partial(saver, loop), stage.scale.window_seconds)
            lasted = during.seconds
            if saves_first:
                outside = await _window(loop, partial(asyncio.sleep, lasted), lasted)
        return compare(during, outside)

    return lambda: asyncio.run(turn(saves_first=next(orders)))


def compare(during: Window, outside: Window) -> Metrics:
    if not outside.rate:
        raise RuntimeError("not one token came in a window without a save: the machine is too busy to measure anything")
    share = during.rate / outside.rate
    seconds = during.seconds / during.actions
    idle_cpu_seconds = outside.cpu_seconds * during.seconds / outside.seconds
    return {
        "share": share,
        "during": during.rate,
        "outside": outside.rate,
        "seconds": seconds,
        "lost": seconds * (1 - share),
        "cpu": (during.cpu_seconds - idle_cpu_seconds) / during.actions,
    }


async def _window(loop: Loop, action: Callable[[], Awaitable[object]], seconds: float) -> Window:
    cpu_before = time.process_time()
    began, ended, actions = await repeat(action, seconds)
    cpu_seconds = time.process_time() - cpu_before
    await loop.catch_up()
    return Window(loop.rate(began, ended), ended - began, actions, cpu_seconds)
