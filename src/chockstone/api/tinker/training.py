"""Training: submits forward and backward passes, optimizer steps and custom losses."""

from __future__ import annotations

from fastapi import Request

from chockstone.api.bodies import off_loop, parse_object, read_body
from chockstone.api.context import ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep
from chockstone.wire.codecs.pass_request import pass_from_json, peek_pass
from chockstone.wire.messages.futures import AcceptedResponse
from chockstone.wire.messages.training import CreateCustomLossRequest, OptimStepRequest

routes = Routes(tags=["training"])


@routes.post("/forward_backward", summary="Compute losses and gradients")
@routes.post("/forward", summary="Compute losses")  # TODO: drop once clients older than 0.25 are gone
async def forward_backward(request: Request, context: ContextDep, caller: CallerDep) -> AcceptedResponse:
    """A protobuf ``ForwardBackwardRequest``, or the JSON that older clients send."""
    body = await read_body(request)
    if "protobuf" not in request.headers.get("content-type", ""):
        received = body
        body = await off_loop(lambda: pass_from_json(parse_object(received)), size_bytes=len(received))
    head = await off_loop(lambda: peek_pass(body), size_bytes=len(body))
    run = await context.run(head.run_id, caller)
    loss = None if head.loss_id is None else await context.engine.losses.find(head.loss_id, owner=run.owner)
    request_id = await context.engine.training.forward_backward(run, head.seq_id, body, loss=loss)
    return AcceptedResponse(request_id=request_id, model_id=run.run_id)


@routes.post("/optim_step", summary="Step the optimizer")
async def optim_step(request: OptimStepRequest, context: ContextDep, caller: CallerDep) -> AcceptedResponse:
    run = await context.run(request.model_id, caller)
    request_id = await context.engine.training.optim_step(
        run, request.seq_id, request.adam_params or request.optimizer_params or {}
    )
    return AcceptedResponse(request_id=request_id, model_id=run.run_id)


@routes.post("/create_custom_loss", summary="Upload a loss")
async def create_custom_loss(
    request: CreateCustomLossRequest, context: ContextDep, caller: CallerDep
) -> AcceptedResponse:
    await context.open_session(request.session_id, caller)
    loss = await context.catalog.losses.create(
        request.session_id,
        request.custom_loss_seq_id,
        owner=caller.user_id,
        name=request.name,
        definition=request.model_dump(include={"inputs", "graph"}),
        now=context.now(),
    )
    return AcceptedResponse(request_id=context.engine.add_loss(loss))
