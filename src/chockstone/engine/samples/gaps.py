"""Sampler gaps: how far the log-probabilities of vLLM servers are from the exact ones, measured and on record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from chockstone.backends.protocol import GapMeter, SampledWeights, SamplerGap
from chockstone.catalog import BASE_ITSELF, Catalog, CatalogError, SamplerGapRow
from chockstone.engine.config import Busy
from chockstone.engine.samples.requests import SamplerSource
from chockstone.telemetry.instruments import Instruments
from chockstone.wire.failures import BadRequest
from chockstone.wire.model_names import ModelName

log = logging.getLogger(__name__)
_PRUNE_SECONDS: Final = 3600.0
_MOST_CHECKS: Final = 4  # at a time, of all users: each has an adapter in use, and the worker scores its probes


@dataclass(frozen=True, slots=True)
class _Check:
    owner: str
    measuring: asyncio.Task[Sequence[SamplerGap]]


class SamplerGaps:
    """``meter`` None: the worker samples itself, exactly, and there is no gap."""

    def __init__(
        self, catalog: Catalog, meter: GapMeter | None, instruments: Instruments, *, now: Callable[[], datetime]
    ) -> None:
        self._catalog = catalog
        self._meter = meter
        self._instruments = instruments
        self._now = now
        self._checks: dict[tuple[str, str | None], _Check] = {}  # in progress, by base model and archive

    @property
    def limit(self) -> float | None:
        """See ``GapMeter.gap_limit``."""
        return None if self._meter is None else self._meter.gap_limit

    @property
    def exceeding(self) -> Sequence[SamplerGap]:
        """See ``GapMeter.exceeding_gaps``."""
        return () if self._meter is None else self._meter.exceeding_gaps()

    async def record(self, gap: SamplerGap) -> None:
        """On return the gap is in the catalog, unless that cannot be reached: samples do not wait for it for long."""
        if gap.mean is not None:
            self._instruments.gap_measured(gap.mean)
        row = SamplerGapRow(
            base_model=gap.base_model,
            archive=BASE_ITSELF if gap.archive is None else gap.archive,
            server=gap.server,
            mean=gap.mean,
            largest=gap.largest,
            tokens=gap.tokens,
            trouble=gap.trouble,
            measured_at=self._now(),
        )
        try:
            await self._catalog.sampler_gaps.record(row)
        except CatalogError as error:
            log.warning("sampler gap not recorded weights=%s error=%s", gap.archive or gap.base_model, error)

    async def check(self, source: SamplerSource) -> Sequence[SamplerGap]:
        """Measure the gap now, on each vLLM server of the model. A check of the same weights in progress is joined.

        Raises BadRequest without such servers, Busy while a check of the same user is running or too many of all users
        are, and what a sample from the source would raise.
        """
        if self._meter is None:
            raise BadRequest(
                "this server samples in its own worker, which is the exact path: there is no gap to measure. Gaps are "
                "measured on servers with --sampler vllm."
            )
        weights = SampledWeights(
            base_model=ModelName.parse(source.base_model).base,
            owner=source.owner,
            archive=source.archive,
            seal=source.seal,
        )
        check = self._checks.get((weights.base_model, weights.archive)) or self._begin(self._meter, weights)
        return await asyncio.shield(check.measuring)  # it goes on when the client leaves, and counts as running

    def _begin(self, meter: GapMeter, weights: SampledWeights) -> _Check:
        if any(check.owner == weights.owner for check in self._checks.values()):
            raise Busy("a check of another sampler of yours is running; check one at a time")
        if len(self._checks) >= _MOST_CHECKS:
            raise Busy(f"{_MOST_CHECKS} checks of samplers are running on this server; check again in a moment")
        name = weights.base_model, weights.archive
        check = self._checks[name] = _Check(weights.owner, asyncio.create_task(_measure(meter, weights)))

        def end(measuring: asyncio.Task[Sequence[SamplerGap]]) -> None:
            del self._checks[name]
            if not measuring.cancelled() and (error := measuring.exception()) is not None:
                log.info("sampler check failed weights=%s error=%s", weights.archive or weights.base_model, error)

        check.measuring.add_done_callback(end)
        return check

    async def keep(self) -> None:
        """Delete the records of weights and vLLM servers that are gone, now and every hour, for ever."""
        while self._meter is not None:
            try:
                await self._catalog.sampler_gaps.prune(servers=self._meter.servers)
            except CatalogError as error:
                log.warning("sampler gaps not pruned error=%s", error)
            await asyncio.sleep(_PRUNE_SECONDS)


async def _measure(meter: GapMeter, weights: SampledWeights) -> Sequence[SamplerGap]:
    return await meter.measure_gaps(weights)
