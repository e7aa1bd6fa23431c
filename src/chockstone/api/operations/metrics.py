"""Metrics: how the server is and what it did, for Prometheus.

They need no credential, so they describe the process and never single users, runs or checkpoints.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.core import Metric

from chockstone.api.routes import Routes
from chockstone.telemetry.instruments import CONTENT_TYPE_LATEST, Instruments

routes = Routes(tags=["metrics"])
_FRESH_SECONDS: Final = 1.0


async def _no_facts() -> Sequence[Metric]:
    return ()


class MetricsPage:
    """The text of all metrics, made at most once a second: anyone may ask for it, as often as they want."""

    def __init__(
        self,
        instruments: Instruments,
        read_facts: Callable[[], Awaitable[Sequence[Metric]]] = _no_facts,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._instruments = instruments
        self._read_facts = read_facts
        self._monotonic = monotonic
        self._making = asyncio.Lock()
        self._text = b""
        self._fresh_until = float("-inf")

    async def read(self) -> bytes:
        async with self._making:
            if self._monotonic() >= self._fresh_until:
                facts = await self._read_facts()
                self._text = await asyncio.to_thread(self._instruments.render, facts)
                self._fresh_until = self._monotonic() + _FRESH_SECONDS
            return self._text


@routes.get("/metrics", response_class=PlainTextResponse, summary="Show the metrics for Prometheus")
async def metrics(request: Request) -> Response:
    """Counters, histograms and gauges of this process, in Prometheus' text format."""
    page: MetricsPage = request.app.state.metrics_page
    return Response(await page.read(), media_type=CONTENT_TYPE_LATEST)
