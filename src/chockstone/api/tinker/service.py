"""Service: health, readiness, served models, and configuration for clients."""

from __future__ import annotations

import logging

from fastapi import Response

from chockstone.api.context import ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep
from chockstone.wire.messages.service import (
    ClientConfigRequest,
    ClientConfigResponse,
    ClientDynamicConfigResponse,
    HealthResponse,
    ReadinessReason,
    ReadinessResponse,
    ServerCapabilitiesResponse,
    SupportedModel,
    TelemetryRequest,
    TelemetryResponse,
)

log = logging.getLogger(__name__)
routes = Routes(tags=["service"])


@routes.get("/healthz", summary="Tell whether the process answers")
async def healthz() -> HealthResponse:
    """Liveness alone: it answers while the worker is away. ``readyz`` tells whether the server can do its work."""
    return HealthResponse()


@routes.get(
    "/readyz",
    summary="Tell whether the server can do its work",
    responses={503: {"model": ReadinessResponse, "description": "The server is not ready"}},
)
async def readyz(context: ContextDep, response: Response) -> ReadinessResponse:
    """Whether the worker is there with all models, catalog and store answer, the journal can be written, and the disk
    has more free space than its reserve. Otherwise 503 with every reason. Requests sent meanwhile wait."""
    reasons = await context.status.readiness.reasons()
    if not reasons:
        return ReadinessResponse(status="ready")
    response.status_code = 503
    return ReadinessResponse(
        status="starting" if all(reason.is_starting for reason in reasons) else "failing",
        detail="; ".join(reason.detail for reason in reasons),
        reasons=[ReadinessReason(check=reason.check, detail=reason.detail) for reason in reasons],
    )


@routes.get("/get_server_capabilities", summary="List the served models")
async def get_server_capabilities(context: ContextDep, caller: CallerDep) -> ServerCapabilitiesResponse:
    models = [
        SupportedModel(model_name=model.name, max_context_length=model.max_context, trainable=True, sampleable=True)
        for model in context.models.values()
    ]
    return ServerCapabilitiesResponse(supported_models=models)


@routes.post("/client/config", summary="Get the client's configuration")
async def client_config(request: ClientConfigRequest, caller: CallerDep) -> ClientConfigResponse:
    return ClientConfigResponse()


@routes.post("/client/dynamic_config", summary="Get the client's configuration that may change")
async def client_dynamic_config(request: ClientConfigRequest, caller: CallerDep) -> ClientDynamicConfigResponse:
    return ClientDynamicConfigResponse()


@routes.post("/telemetry", summary="Accept a client's telemetry")
async def telemetry(request: TelemetryRequest, caller: CallerDep) -> TelemetryResponse:
    """Accepted and dropped. Clients put credentials into telemetry, so the debug log has it redacted."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug("telemetry user=%s batch=%s", caller.user_id, str(request.redacted())[:10_000])
    return TelemetryResponse()
