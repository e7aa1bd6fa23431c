"""Sampler gaps: how far the log-probabilities of vLLM servers are from the exact ones, measured and on record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from chockstone.backends.protocol import GapMeter, SampledWeights, SamplerGap
from chockstone.catalog import BASE_ITSELF, Catalog, CatalogError, SamplerGapRow
from chockstone.engine.samples.requests import SamplerSource
from chockstone.telemetry.instruments import Instruments
from chockstone.wire.failures import BadRequest
from chockstone.wire.model_names import ModelName

log = logging.getLogger(__name__)
_PRUNE_SECONDS: Final = 3600.0


class SamplerGaps:
    """``meter`` None: the worker samples itself, exactly, and there is no gap."""

    def __init__(
        self, catalog: Catalog, meter: GapMeter | None, instruments: Instruments, *, now: Callable[[], datetime]
    ) -> None:
        self._catalog = catalog
        self._meter = meter
        self._instruments = instruments
        self._now = now

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
        """Measure the gap now, on each vLLM server of the model.

        Raises BadRequest without such servers, and what a sample from the source would raise.
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
        return await self._meter.measure_gaps(weights)

    async def keep(self) -> None:
        """Delete the records of weights and vLLM servers that are gone, now and every hour, for ever."""
        while self._meter is not None:
            try:
                await self._catalog.sampler_gaps.prune(servers=self._meter.servers)
            except CatalogError as error:
                log.warning("sampler gaps not pruned error=%s", error)
            await asyncio.sleep(_PRUNE_SECONDS)
