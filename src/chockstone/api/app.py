"""The app: all routes, under ``/api/v1`` but for the metrics, and what is true of each of them."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, FastAPI

import chockstone
from chockstone.api import (
    audit,
    auth,
    billing,
    checkpoints,
    downloads,
    errors,
    futures,
    metrics,
    models,
    policies,
    runs,
    samplers,
    service,
    sessions,
    storage,
    traces,
    training,
    trash,
    weights,
)
from chockstone.api.bodies import BodyLimit
from chockstone.api.context import Context

RESOURCES: Final = (
    *(service, auth, sessions, models, training, weights, samplers, futures, runs, checkpoints, downloads),
    *(storage, trash, policies, audit, billing, traces),
)


def create_app(context: Context) -> FastAPI:
    app = FastAPI(
        title="Chockstone",
        version=chockstone.__version__,
        docs_url="/docs",
        redoc_url=None,
        redirect_slashes=False,  # one slash more must not name another checkpoint
    )
    app.state.context = context
    routes = APIRouter(prefix="/api/v1")
    for resource in RESOURCES:
        routes.include_router(resource.routes)
    app.include_router(routes)
    app.include_router(metrics.routes)
    app.add_middleware(BodyLimit, limit_bytes=context.config.max_body_bytes)
    errors.install(app)
    return app
