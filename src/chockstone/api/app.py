"""The app: all routes below ``/api/v1``, the metrics, the admission middleware and the error handlers."""

from __future__ import annotations

from functools import cache
from typing import Final

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute

import chockstone
from chockstone.api import errors
from chockstone.api.admission.admission import AdmissionMiddleware
from chockstone.api.admission.browser import BrowserPages, PagesRoute
from chockstone.api.admission.hosts import Hosts
from chockstone.api.admission.limits import UploadLimits
from chockstone.api.admission.uploads import Uploads
from chockstone.api.anthropic import messages as anthropic_messages
from chockstone.api.anthropic import models as anthropic_models
from chockstone.api.chat.chat_service import ChatService
from chockstone.api.context import Context
from chockstone.api.documentation import pages
from chockstone.api.documentation.openapi import DESCRIPTION, OpenApiDocument
from chockstone.api.downloads import routes as downloads
from chockstone.api.openai import models as openai_models
from chockstone.api.openai.chat import chat_completions
from chockstone.api.openai.completions import completions
from chockstone.api.openai.responses import responses
from chockstone.api.operations import (
    aliases,
    audit,
    conversations,
    doctor,
    keys,
    metric_facts,
    metrics,
    recoveries,
    replicas,
    run_metrics,
    server,
)
from chockstone.api.operations import runs as all_runs
from chockstone.api.operations import samplers as all_samplers
from chockstone.api.operations.disk import policies, storage, trash
from chockstone.api.requests.failed_requests import FailedRequests
from chockstone.api.requests.request_context import RequestContext
from chockstone.api.tinker import (
    auth,
    billing,
    checkpoints,
    external_weights,
    futures,
    models,
    runs,
    samplers,
    service,
    sessions,
    traces,
    training,
    weights,
)
from chockstone.api.vendors.error_shapes import VendorErrors
from chockstone.telemetry.request_metrics import RequestMetrics

RESOURCES: Final = (
    *(
        service,
        auth,
        sessions,
        models,
        training,
        weights,
        external_weights,
        samplers,
        futures,
        runs,
        checkpoints,
        downloads,
    ),
    *(run_metrics, storage, trash, policies, aliases, conversations),
    *(server, replicas, all_runs, recoveries, all_samplers, keys, doctor, audit, billing, traces),
)

OPENAI: Final = (openai_models, chat_completions, completions, responses)
ANTHROPIC: Final = (anthropic_messages, anthropic_models)
VENDOR_RESOURCES: Final = {
    "/v1": OPENAI,
    "/anthropic/v1": ANTHROPIC,
}  # APIs of other vendors, by the prefix of their paths
_OTHER_PREFIXES: Final = {"/oai/api/v1": OPENAI, "/anthropic/api/v1": ANTHROPIC}  # where hosted Tinker has them


@cache
def _shared_routes() -> tuple[BaseRoute, ...]:
    """The routes of every app in this process. FastAPI analyses them once, which takes longer than to make an app."""
    shared = APIRouter()
    for resource in RESOURCES:
        shared.include_router(resource.routes, prefix="/api/v1")
    for resources, is_shown in ((VENDOR_RESOURCES, True), (_OTHER_PREFIXES, False)):
        for prefix, vendor_resources in resources.items():
            for resource in vendor_resources:
                shared.include_router(resource.routes, prefix=prefix, include_in_schema=is_shown)
    shared.include_router(metrics.routes)
    shared.include_router(pages.routes)
    return tuple(shared.routes)


def create_app(context: Context, *, uploads: Uploads | None = None, console: BrowserPages | None = None) -> FastAPI:
    app = FastAPI(
        title="Chockstone",
        version=chockstone.__version__,
        description=DESCRIPTION,
        openapi_url=None,  # ``documentation`` serves it, without holding the event loop
        redirect_slashes=False,  # an extra slash must not name another checkpoint
    )
    app.state.context = context
    app.state.chat = ChatService(context)
    app.state.metrics_page = metrics.MetricsPage(context.instruments, metric_facts.FactReader(context).read)
    app.state.documentation = pages.Documentation(
        OpenApiDocument(app), public_url=context.config.public_url, has_console=console is not None
    )
    app.router.routes.extend(_shared_routes())
    if console is not None:
        app.router.routes.append(PagesRoute(console))
    app.add_middleware(
        AdmissionMiddleware,
        callers=context,
        hosts=Hosts(context.config.public_url),
        uploads=uploads or Uploads(UploadLimits(context.config.max_body_bytes)),
        refused=context.refused_keys,
        pages=console,
    )
    app.add_middleware(FailedRequests, failures=context.engine.failures)  # outside of admission: it sees refusals, too
    app.add_middleware(VendorErrors)
    app.add_middleware(RequestMetrics, instruments=context.instruments)
    app.add_middleware(RequestContext)  # the outermost
    errors.install(app)
    return app
