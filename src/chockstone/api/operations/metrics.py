"""Metrics: how the server is and what it did, for Prometheus.

They need no credential, so they describe the process and never single users, runs or checkpoints.
"""

from __future__ import annotations

import asyncio

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse

from chockstone.api.lookup import LookupDep
from chockstone.api.operations.metric_facts import FactReader
from chockstone.api.routes import Routes
from chockstone.telemetry.instruments import CONTENT_TYPE_LATEST

routes = Routes(tags=["metrics"])


@routes.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request, context: LookupDep) -> Response:
    """Counters, histograms and gauges of this process, in Prometheus' text format."""
    reader: FactReader | None = getattr(request.app.state, "metric_facts", None)  # an API replica has none
    facts = () if reader is None else await reader.read()
    text = await asyncio.to_thread(context.instruments.render, facts)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
