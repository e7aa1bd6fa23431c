"""The app of a front: what the catalog alone can tell is told here; whatever else is asked is the engine's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from fastapi import APIRouter, FastAPI

from chockstone.api import errors
from chockstone.api.admission.admission import AdmissionMiddleware
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
from chockstone.api.tinker import checkpoints, runs, service, sessions
from chockstone.catalog import Catalog, RunRow

_READS: Final = (
    service.healthz,  # of this process; whether the engine is well, every other answer tells
    *(runs.list_runs, runs.get_run),
    *(checkpoints.list_checkpoints, checkpoints.list_checkpoints_of_run, checkpoints.get_checkpoint),
    *(sessions.list_sessions, sessions.get_session, sessions.search_sessions),
)

# bodies pass in pieces; how large they may be, the engine says
_UPLOADS: Final = UploadLimits(body_bytes=1 << 62, json_bytes=1 << 62)


@dataclass(slots=True)
class ReplicaContext(Lookup):
    known: Catalog
    loop_health: LoopHealth = field(default_factory=LoopHealth)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def catalog(self) -> Catalog:
        return self.known

    def last_request(self, row: RunRow) -> datetime:
        """What the engine wrote down last, which it does several times a minute."""
        return row.last_request_at


def create_replica(
    context: ReplicaContext,
    engine: EngineLink,
    callers: ReplicaCallers,
    passage: EngineProxy,
    *,
    hosts: Hosts,
    refused: RefusedKeys,
) -> FastAPI:
    app = FastAPI(openapi_url=None, redirect_slashes=False)  # the engine has the documentation of all routes
    app.state.context = context
    told = APIRouter(prefix="/api/v1")
    for resource in (service, runs, checkpoints, sessions):
        reads = [route for route in resource.routes.routes if getattr(route, "endpoint", None) in _READS]
        told.include_router(APIRouter(routes=reads))
    app.include_router(told)
    app.include_router(metrics.routes)  # of this process
    app.mount("/", passage)
    app.add_middleware(AdmissionMiddleware, callers=callers, hosts=hosts, uploads=Uploads(_UPLOADS), refused=refused)
    app.add_middleware(RefuseLoops, engine=engine)
    errors.install(app)
    return app
