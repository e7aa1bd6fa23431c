"""The app of an API replica: reads from the catalog are answered here; all other requests go to the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from fastapi import APIRouter, FastAPI

from chockstone.api import errors
from chockstone.api.admission.admission import AdmissionMiddleware
from chockstone.api.admission.browser import ForwardedPages
from chockstone.api.admission.hosts import Hosts
from chockstone.api.admission.limits import UploadLimits
from chockstone.api.admission.refusals import RefusedKeys
from chockstone.api.admission.uploads import Uploads
from chockstone.api.lookup import Lookup
from chockstone.api.loop_health import LoopHealth
from chockstone.api.operations import metrics
from chockstone.api.replica.callers import ReplicaCallers
from chockstone.api.replica.engine_link import EngineLink
from chockstone.api.replica.loops import RefuseLoops
from chockstone.api.replica.proxy import EngineProxy
from chockstone.api.replica.readiness import ReplicaReadiness
from chockstone.api.requests.failed_requests import FailedRequests
from chockstone.api.requests.request_context import RequestContext
from chockstone.api.tinker import checkpoints, runs, service, sessions
from chockstone.api.vendors.error_shapes import VendorErrors
from chockstone.catalog import Catalog, RunProgress, RunRow
from chockstone.engine.failure_log import FailureLog
from chockstone.telemetry.instruments import Instruments
from chockstone.telemetry.request_metrics import RequestMetrics

_READS: Final = (
    service.healthz,  # of this process; a failed forward tells about the engine
    *(runs.list_runs, runs.get_run),
    *(checkpoints.list_checkpoints, checkpoints.search_checkpoints),
    *(checkpoints.list_checkpoints_of_run, checkpoints.get_checkpoint),
    *(sessions.list_sessions, sessions.get_session, sessions.search_sessions),
)

# bodies are streamed; the engine limits their size
_UPLOADS: Final = UploadLimits(body_bytes=1 << 62, json_bytes=1 << 62)


@dataclass(slots=True)
class ReplicaContext(Lookup):
    known: Catalog
    measures: Instruments = field(default_factory=lambda: Instruments(has_engine=False))
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    loop_health: LoopHealth = field(init=False)

    def __post_init__(self) -> None:
        self.loop_health = LoopHealth(self.measures)

    @property
    def catalog(self) -> Catalog:
        return self.known

    @property
    def instruments(self) -> Instruments:
        return self.measures

    def last_request(self, row: RunRow) -> datetime:
        """As the engine wrote it last, which it does several times a minute."""
        return row.last_request_at

    def progress(self, row: RunRow) -> RunProgress:
        return row.progress


def create_replica(
    context: ReplicaContext,
    engine: EngineLink,
    callers: ReplicaCallers,
    proxy: EngineProxy,
    *,
    hosts: Hosts,
    refused: RefusedKeys,
    failures: FailureLog,
) -> FastAPI:
    app = FastAPI(openapi_url=None, redirect_slashes=False)  # the engine has the documentation of all routes
    app.state.context = context
    app.state.metrics_page = metrics.MetricsPage(context.instruments)
    reads = APIRouter(prefix="/api/v1")
    for resource in (service, runs, checkpoints, sessions):
        routes = [route for route in resource.routes.routes if getattr(route, "endpoint", None) in _READS]
        reads.include_router(APIRouter(routes=routes))
    app.include_router(reads)
    app.include_router(ReplicaReadiness(engine, context.catalog).routes())
    app.include_router(metrics.routes)  # of this process
    app.mount("/", proxy)
    app.add_middleware(
        AdmissionMiddleware,
        callers=callers,
        hosts=hosts,
        uploads=Uploads(_UPLOADS),
        refused=refused,
        pages=ForwardedPages(),
    )
    app.add_middleware(RefuseLoops, engine=engine)  # outside of admission: to identify a caller may ask the engine
    app.add_middleware(FailedRequests, failures=failures)
    app.add_middleware(VendorErrors)  # of what is refused here; the engine's errors have their shape
    app.add_middleware(RequestMetrics, instruments=context.instruments)
    app.add_middleware(RequestContext)  # the outermost
    errors.install(app)
    return app
