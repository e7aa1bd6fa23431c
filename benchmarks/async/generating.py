"""Generating: tokens per second while a state is being saved, against the same program without a save.

Each turn is windows of saves, one after the other, and beside each a window as long without any, in an order that
changes: what disturbs the machine for seconds disturbs both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle

from benchmarks.checkpoints.states import State
from benchmarks.harness.context import Context
from benchmarks.harness.free_memory import AsItIs
from benchmarks.harness.rounds import Metrics, Rows, Turn

from .loop import Loop, repeat, running
from .savers import Saver, new_checkpointer, savers
from .setup import Setup

NOTHING = "no save in either window"


@dataclass(slots=True)
class Windows:
    """All stretches of time in one turn that have saves, or all that have none."""

    stretches: list[tuple[float, float]] = field(default_factory=list)
    actions: int = 0
    cpu_seconds: float = 0.0  # of this process

    @property
    def seconds(self) -> float:
        return sum(end - begin for begin, end in self.stretches)

    async def add(self, action: Callable[[], Awaitable[object]], seconds: float) -> float:
        """Add a stretch of repeated actions; returns its length in seconds."""
        cpu_before = time.process_time()
        began, ended, actions = await repeat(action, seconds)
        self.cpu_seconds += time.process_time() - cpu_before
        self.stretches.append((began, ended))
        self.actions += actions
        return ended - began

    def rate(self, loop: Loop) -> float:
        """Tokens per second; ask when the loop has caught up."""
        return sum(loop.rate(begin, end) * (end - begin) for begin, end in self.stretches) / self.seconds


def measure_generating(context: Context, setup: Setup, *, name: str) -> Rows:
    state = setup.scale.states()[name]()
    context.describe(f"{state.title}, {state.size_bytes / 1e6:,.0f} MB")
    with (
        new_checkpointer(context.directory / "paced", is_paced=True) as paced,
        new_checkpointer(context.directory / "fast", is_paced=False) as fast,
    ):
        contestants = {
            row: _turns(setup, state, saver) for row, saver in savers(context.directory, paced, fast).items()
        }
        contestants[NOTHING] = _turns(setup, state, partial(_nothing, setup.scale.window_seconds))
        return context.run_rounds(contestants, repeats=setup.scale.rounds, memory=AsItIs(syncs=True))


async def _nothing(seconds: float, _loop: Loop) -> None:
    await asyncio.sleep(seconds)


def _turns(setup: Setup, state: State, saver: Saver) -> Turn:
    orders = cycle((True, False))  # saves first, or last
    lasted = setup.scale.window_seconds

    async def turn(*, saves_first: bool) -> Metrics:
        nonlocal lasted
        during, outside = Windows(), Windows()
        began = time.perf_counter()
        async with running(state, setup.traffic) as loop:
            while not during.actions or time.perf_counter() - began < setup.scale.turn_seconds:
                if not saves_first:
                    await outside.add(partial(asyncio.sleep, lasted), lasted)
                lasted = await during.add(partial(saver, loop), setup.scale.window_seconds)
                if saves_first:
                    await outside.add(partial(asyncio.sleep, lasted), lasted)
                saves_first = not saves_first
            await loop.catch_up()
            return compare(loop, during, outside)

    return lambda: asyncio.run(turn(saves_first=next(orders)))


def compare(loop: Loop, during: Windows, outside: Windows) -> Metrics:
    rates = during.rate(loop), outside.rate(loop)
    if not rates[1]:
        raise RuntimeError("not one token came in a window without a save: the machine is too busy to measure anything")
    share = rates[0] / rates[1]
    seconds = during.seconds / during.actions
    idle_cpu_seconds = outside.cpu_seconds * during.seconds / outside.seconds
    return {
        "share": share,
        "during": rates[0],
        "outside": rates[1],
        "seconds": seconds,
        "lost": seconds * (1 - share),
        "cpu": (during.cpu_seconds - idle_cpu_seconds) / during.actions,
    }
