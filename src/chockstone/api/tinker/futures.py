"""Futures: results of requests, by long polling."""

from __future__ import annotations

import asyncio
from typing import Final

import orjson
from fastapi import HTTPException, Request, Response

from chockstone.api.bodies import off_loop
from chockstone.api.context import Context, ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import Caller, CallerDep
from chockstone.engine.futures import Promise, Result
from chockstone.wire.codecs.pass_result import pass_result_json
from chockstone.wire.codecs.sample_result import sample_result_json
from chockstone.wire.failures import ServerFailure
from chockstone.wire.messages.futures import (
    CancelFutureRequest,
    CompleteMetadataResponse,
    FailedCompletion,
    FinishedCompletion,
    RetrieveFutureRequest,
    RetrieveFuturesRequest,
    RetrieveFuturesResponse,
    TryAgainResponse,
)

routes = Routes(tags=["futures"])
_HOLD_SECONDS: Final = 25.0  # clients give up at 45, and ask again at once after a 408
_LARGE_BYTES: Final = 1 << 20  # larger results are announced first, if the client asks for that
_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"


@routes.post("/retrieve_future", summary="Fetch a result")
async def retrieve_future(
    message: RetrieveFutureRequest, request: Request, context: ContextDep, caller: CallerDep
) -> Response:
    """Waits for the result. 408: not finished, ask again. 410: the result is not kept any longer."""
    try:
        held = await context.polls.hold(_result(context, caller, message.request_id), timeout_seconds=_HOLD_SECONDS)
    except ServerFailure as error:  # its run cannot be woken now; clients ask again at once after any answer
        await context.polls.hold(asyncio.sleep(_HOLD_SECONDS), timeout_seconds=_HOLD_SECONDS)
        return _not_yet(message.request_id, str(error))
    if held is None:
        return _not_yet(message.request_id, context.engine.why_waiting(message.request_id))
    promise, result = held
    if message.allow_metadata_only and len(result.body) > _LARGE_BYTES:
        announced = CompleteMetadataResponse(response_payload_size=len(result.body))
        return Response(announced.encode(), media_type=_JSON)
    response = await _respond(result, wants_protobuf=_PROTOBUF in request.headers.get("accept", ""))
    context.engine.futures.delivered(promise)
    return response


@routes.post("/retrieve_futures", summary="Fetch results as they come")
async def retrieve_futures(
    message: RetrieveFuturesRequest, context: ContextDep, caller: CallerDep
) -> RetrieveFuturesResponse:
    """Which samples of one sampler are finished. Waits until at least one is, but answers a first poll at once.
    410: the server has lost the samples that the client waits for."""
    target = message.target
    await context.source(target.sampling_session_id, caller)
    feed = context.engine.sampling.feed(target.sampling_session_id, target.cloned_sampler_id)
    if not feed.knows(message.prev_cursor):
        raise HTTPException(
            410,
            f"the samples of sampling session {target.sampling_session_id!r} are lost: the server does not have the "
            "journal any more in which they were; create the sampling client again, and send the samples again",
        )
    feed.acknowledge(message.retrieved_request_ids)
    hold = _HOLD_SECONDS if message.timeout is None else min(message.timeout, _HOLD_SECONDS)
    news = await context.polls.hold(feed.after(message.prev_cursor, hold), timeout_seconds=_HOLD_SECONDS)
    completions, cursor = news or ([], message.prev_cursor)
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


@routes.post("/cancel_future", summary="Cancel a sample")
async def cancel_future(message: CancelFutureRequest, context: ContextDep, caller: CallerDep) -> Response:
    """Cancel a sample. Does nothing for other requests or unknown ids."""
    found = context.promise(message.request_id, caller)  # may have to wake a run of an earlier server
    if await context.polls.hold(found, timeout_seconds=_HOLD_SECONDS) is not None:
        context.engine.sampling.cancel(message.request_id)
    return Response(b"{}", media_type=_JSON)


async def _result(context: Context, caller: Caller, request_id: str) -> tuple[Promise, Result] | None:
    promise = await context.promise(request_id, caller)
    if promise is not None:
        result = await promise.wait(_HOLD_SECONDS)
        return None if result is None else (promise, result)
    futures = context.engine.futures
    if (failure := await context.why_lost(request_id, caller)) is not None:
        refused = futures.get(context.engine.refuse(caller.user_id, ServerFailure(failure)))
        return None if refused is None or refused.result is None else (refused, refused.result)
    is_anothers = futures.get(request_id) is not None or not await context.may_be_of(request_id, caller)
    if not is_anothers and futures.was_ours(request_id):
        raise HTTPException(410, f"the result of request {request_id!r} is not kept any longer; submit it again")
    raise HTTPException(404, f"there is no request {request_id[:100]!r}")


def _not_yet(request_id: str, reason: str | None) -> Response:
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
