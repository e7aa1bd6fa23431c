"""Metrics: the server's own health, for Prometheus.

They need no credential, so they describe the process and never users, runs or checkpoints.
"""

from __future__ import annotations

from fastapi import Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from chockstone.api.lookup import LookupDep
from chockstone.api.routes import Routes

routes = Routes(tags=["metrics"])


@routes.get("/metrics", response_class=PlainTextResponse)
async def metrics(context: LookupDep) -> Response:
    """How late the event loop was, in Prometheus' text format."""
    return Response(context.loop_health.render(), media_type=CONTENT_TYPE_LATEST)
