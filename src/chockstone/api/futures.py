"""Futures: what became of a request, told as soon as it is known."""

from __future__ import annotations

from typing import Final

import orjson
from fastapi import HTTPException, Request, Response

from chockstone.api.bodies import off_loop
from chockstone.api.context import Context, ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import Caller, CallerDep
from chockstone.engine.futures import Promise, Result
from chockstone.wire.futures import (
    CancelFutureRequest,
    CompleteMetadataResponse,
    FailedCompletion,
    FinishedCompletion,
    RetrieveFutureRequest,
    RetrieveFuturesRequest,
    RetrieveFuturesResponse,
    TryAgainResponse,
)
from chockstone.wire.pass_result import pass_result_json
from chockstone.wire.sample_result import sample_result_json

routes = Routes(tags=["futures"])
_HOLD_SECONDS: Final = 25.0  # clients give up at 45, and ask again at once after a 408
_LARGE_BYTES: Final = 1 << 20  # results that a client may want to make room for
_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"


@routes.post("/retrieve_future")
async def retrieve_future(
    message: RetrieveFutureRequest, request: Request, context: ContextDep, caller: CallerDep
) -> Response:
    """Waits for the result. 408: not yet, ask again. 410: it was there, and is not kept any longer."""
    promise = _find(context, caller, message.request_id)
    result = await promise.wait(_HOLD_SECONDS)
    if result is None:
        return _not_yet(context, message.request_id)
    if message.allow_metadata_only and len(result.body) > _LARGE_BYTES:
        announced = CompleteMetadataResponse(response_payload_size=len(result.body))
        return Response(announced.encode(), media_type=_JSON)
    response = await _respond(result, wants_protobuf=_PROTOBUF in request.headers.get("accept", ""))
    context.engine.futures.delivered(promise)
    return response


@routes.post("/retrieve_futures")
async def retrieve_futures(
    message: RetrieveFuturesRequest, context: ContextDep, caller: CallerDep
) -> RetrieveFuturesResponse:
    """Which samples of one sampler are done. Waits for news if there are none."""
    target = message.target
    await context.source(target.sampling_session_id, caller)
    feed = context.engine.sampling.feed(target.sampling_session_id, target.cloned_sampler_id)
    feed.acknowledge(message.retrieved_request_ids)
    hold = _HOLD_SECONDS if message.timeout is None else min(message.timeout, _HOLD_SECONDS)
    completions, cursor = await feed.after(message.prev_cursor, hold)
    return RetrieveFuturesResponse(
        completions=[
            FailedCompletion(request_id=completion.request_id)
            if completion.is_failure
            else FinishedCompletion(
                request_id=completion.request_id, response_payload_uncompressed_size=completion.size_bytes
            )
            for completion in completions
        ],
        cursor=cursor,
    )


@routes.post("/cancel_future")
async def cancel_future(message: CancelFutureRequest, context: ContextDep, caller: CallerDep) -> Response:
    """A sample that is not wanted any more ends; anything else, or nothing, is fine too."""
    promise = context.engine.futures.get(message.request_id)
    if promise is not None and promise.owner == caller.user_id:
        context.engine.sampling.cancel(message.request_id)
    return Response(b"{}", media_type=_JSON)


def _find(context: Context, caller: Caller, request_id: str) -> Promise:
    futures = context.engine.futures
    promise = futures.get(request_id)
    if promise is not None and promise.owner == caller.user_id:
        return promise
    if promise is None and futures.was_ours(request_id):
        raise HTTPException(410, f"the result of request {request_id!r} is not kept any longer; submit it again")
    raise HTTPException(404, f"there is no request {request_id[:100]!r}")


def _not_yet(context: Context, request_id: str) -> Response:
    reason = None if context.engine.is_ready else "the models are being loaded"
    answer = TryAgainResponse(
        request_id=request_id,
        queue_state="active" if reason is None else "paused_capacity",
        queue_state_reason=reason,
    )
    return Response(answer.encode(), 408, media_type=_JSON)


async def _respond(result: Result, *, wants_protobuf: bool) -> Response:
    if result.form == "json" or result.is_failure:
        return Response(result.body, media_type=_JSON)
    if wants_protobuf:
        return Response(result.body, media_type=_PROTOBUF)
    convert = pass_result_json if result.form == "pass" else sample_result_json
    body = await off_loop(lambda: orjson.dumps(convert(result.body)), size_bytes=len(result.body))
    return Response(body, media_type=_JSON)
