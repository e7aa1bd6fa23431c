"""Readiness of an API replica: whether the engine and the catalog answer it.

It does not ask whether the engine itself is ready: requests to an engine whose worker restarts wait, and reads need no
worker. So a load balancer keeps sending requests to a replica whose engine is busy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from chockstone.api.replica.engine_link import EngineAway, EngineLink
from chockstone.catalog import Catalog, CatalogError
from chockstone.wire.messages.service import ReadinessReason, ReadinessResponse

_FRESH_SECONDS: Final = 2.0  # however often a probe asks: it needs no key
_TIMEOUT_SECONDS: Final = 2.0


class ReplicaReadiness:
    def __init__(
        self, engine: EngineLink, catalog: Catalog, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._catalog = catalog
        self._monotonic = monotonic
        self._asking: asyncio.Task[tuple[ReadinessReason, ...]] | None = None
        self._asked_at = 0.0

    def routes(self) -> APIRouter:
        routes = APIRouter(prefix="/api/v1")
        routes.add_api_route("/readyz", self.readyz, methods=["GET"], response_model=None)
        return routes

    async def readyz(self) -> Response:
        """503 with every reason, as the engine's own ``readyz``."""
        if self._asking is None or (self._asking.done() and self._monotonic() - self._asked_at >= _FRESH_SECONDS):
            self._asked_at = self._monotonic()
            self._asking = asyncio.create_task(self._ask())
        reasons = await asyncio.shield(self._asking)
        if not reasons:
            return JSONResponse({"status": "ready"})
        detail = "; ".join(reason.detail for reason in reasons)
        answer = ReadinessResponse(status="failing", detail=detail, reasons=list(reasons))
        return Response(answer.encode(), 503, media_type="application/json")

    async def _ask(self) -> tuple[ReadinessReason, ...]:
        answers = await asyncio.gather(self._ask_engine(), self._ask_catalog())
        return tuple(answer for answer in answers if answer is not None)

    async def _ask_engine(self) -> ReadinessReason | None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                async with await self._engine.ask("GET", "/api/v1/healthz", headers=[]) as answer:
                    if answer.status == 200:
                        return None
        except (EngineAway, TimeoutError):  # the message names a host, and a probe needs no key
            pass
        return ReadinessReason(check="engine", detail="the engine does not answer this API replica")

    async def _ask_catalog(self) -> ReadinessReason | None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                await self._catalog.ping()
        except (CatalogError, OSError):  # a timeout is an OSError
            return ReadinessReason(check="catalog", detail="the catalog cannot be reached; the replica's log says why")
        return None
