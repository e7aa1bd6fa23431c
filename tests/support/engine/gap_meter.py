"""A gap meter that measures what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from chockstone.backends.protocol import SampledWeights, SamplerGap

SERVER = "http://gpu-1:8001"


async def _report_nothing(_: SamplerGap) -> None:
    pass


class ScriptedGapMeter:
    """``found`` are the gaps of all weights, one for each server; ``report`` gets what was measured."""

    def __init__(self, *found: SamplerGap, limit: float | None = 0.1) -> None:
        self.found = list(found) or [measured()]
        self.gap_limit = limit
        self.asked: list[SampledWeights] = []
        self.gate = asyncio.Event()  # measurements wait for it
        self.gate.set()
        self.failure: Exception | None = None  # that they raise
        self.exceeding: list[SamplerGap] = []
        self.report: Callable[[SamplerGap], Awaitable[None]] = _report_nothing

    @property
    def servers(self) -> Sequence[str]:
        return [gap.server for gap in self.found]

    async def measure_gaps(self, weights: SampledWeights) -> Sequence[SamplerGap]:
        self.asked.append(weights)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        gaps = [replace(gap, base_model=weights.base_model, archive=weights.archive) for gap in self.found]
        for gap in gaps:
            if gap.was_asked:
                await self.report(gap)
        return gaps

    def exceeding_gaps(self) -> Sequence[SamplerGap]:
        return self.exceeding


def measured(mean: float = 0.002, largest: float | None = None, *, server: str = SERVER) -> SamplerGap:
    most = 5 * mean if largest is None else largest
    return SamplerGap(server=server, base_model="tiny", mean=mean, largest=most, tokens=128)


def unmeasured(trouble: str, *, server: str = SERVER, was_asked: bool = True) -> SamplerGap:
    return SamplerGap(server=server, base_model="tiny", trouble=trouble, was_asked=was_asked)
