"""The app: all routes under ``/api/v1``, and what is true of each of them."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI

import chockstone
from chockstone.api import auth, errors, futures, models, runs, samplers, service, sessions, training, weights
from chockstone.api.bodies import BodyLimit
from chockstone.api.context import Context


def create_app(context: Context) -> FastAPI:
    app = FastAPI(title="Chockstone", version=chockstone.__version__, docs_url="/docs", redoc_url=None)
    app.state.context = context
    routes = APIRouter(prefix="/api/v1")
    for resource in (service, auth, sessions, models, training, weights, samplers, futures, runs):
        routes.include_router(resource.routes)
    app.include_router(routes)
    app.add_middleware(BodyLimit, limit_bytes=context.config.max_body_bytes)
    errors.install(app)
    return app
