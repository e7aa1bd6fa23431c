"""The timeline: tokens as they came before, during and after one save, each way of saving in turn."""

from __future__ import annotations

import asyncio
import time

from benchmarks.checkpoints.states import State
from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Rows, Series

from .loop import Loop, running
from .savers import Saver, new_checkpointer, savers
from .setup import Setup

BIN_SECONDS = 0.1


def measure_timeline(context: Context, setup: Setup) -> Rows:
    """Rows are named ``state: saver``. Rates are those of bins, and ``seconds`` is how long the save took."""
    context.describe(f"one save, as {BIN_SECONDS * 1e3:.0f} ms bins saw it")
    rows: Rows = {}
    for name, make in setup.scale.states().items():
        state = make()
        with (
            new_checkpointer(context.directory / f"{name}-paced", is_paced=True) as paced,
            new_checkpointer(context.directory / f"{name}-fast", is_paced=False) as fast,
        ):
            for saver_name, saver in savers(context.directory, paced, fast).items():
                context.say(f"{name}: {saver_name}")
                rows[row_of(name, saver_name)] = asyncio.run(_one(setup, state, saver))
    return rows


def row_of(state: str, saver: str) -> str:
    return f"{state}: {saver}"


async def _one(setup: Setup, state: State, saver: Saver) -> Series:
    async with running(state, setup.traffic) as loop:
        await saver(loop)  # a saver that keeps a buffer has it now
        await loop.catch_up()
        await asyncio.sleep(setup.scale.around_seconds)
        began = time.perf_counter()
        await saver(loop)
        ended = time.perf_counter()
        await asyncio.sleep(setup.scale.around_seconds)
    series = Series()
    for metrics in _bins(
        loop, began, first=-setup.scale.around_seconds, last=ended - began + setup.scale.around_seconds
    ):
        series.add(metrics)
    series.add({"seconds": ended - began})
    return series


def _bins(loop: Loop, zero: float, *, first: float, last: float) -> list[dict[str, float]]:
    """Tokens count in the bin in which their answer came."""
    counted = [0] * max(1, round((last - first) / BIN_SECONDS))
    for answer in loop.answers:
        place = int((answer.came - zero - first) // BIN_SECONDS)
        if 0 <= place < len(counted):
            counted[place] += answer.tokens
    return [
        {"at": first + place * BIN_SECONDS, "tokens_per_second": tokens / BIN_SECONDS}
        for place, tokens in enumerate(counted)
    ]
