"""Playground samples: one prompt through the engine's sampling path, in a session of its own.

The session is created for the sample and finished after it. If the server is killed meanwhile, the next server finishes
it. A sample whose page is left is cancelled: the response that carries it is closed, and its generator with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
from fastapi import HTTPException

from chockstone.api.context import Context
from chockstone.api.tinker.samplers import create_sampling_session, submit_sample
from chockstone.api.tinker.sessions import create_session, finish_session
from chockstone.api.users import Caller
from chockstone.catalog import CatalogError
from chockstone.engine.config import Busy
from chockstone.engine.futures import Result
from chockstone.engine.journal.writer import Stalled
from chockstone.engine.session_end import SERVER_SDK
from chockstone.wire.codecs import messages_pb2 as pb
from chockstone.wire.codecs.sample_result import NO_LOGPROB
from chockstone.wire.failures import Failure, RequestError
from chockstone.wire.messages.sampling_sessions import CreateSamplingSessionRequest
from chockstone.wire.messages.sessions import CreateSessionRequest, FinishReason, FinishSessionRequest, FinishType

log = logging.getLogger(__name__)
ALTERNATIVES: Final = 5
_LOOK_SECONDS: Final = 2.0  # between two reports of a sample that waits


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """What to sample from, and how. Either ``base_model`` or ``model_path`` is given."""

    prompt: tuple[int, ...]
    base_model: str | None = None
    model_path: str | None = None
    max_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    alternatives: int = ALTERNATIVES

    def body(self, sampling_session_id: str) -> bytes:
        """As JSON of an ``asample`` request."""
        params: dict[str, Any] = {"max_tokens": self.max_tokens, "temperature": self.temperature, "top_p": self.top_p}
        if self.seed is not None:
            params["seed"] = self.seed
        if self.stop:
            params["stop"] = list(self.stop)
        return orjson.dumps(
            {
                "sampling_session_id": sampling_session_id,
                "seq_id": 1,
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(self.prompt)}]},
                "sampling_params": params,
                "num_samples": 1,
                "topk_sample_logprobs": self.alternatives,
            }
        )


@dataclass(frozen=True, slots=True)
class SampleWaiting:
    """The sample is not there yet. ``reason`` None: it is being computed."""

    reason: str | None


@dataclass(frozen=True, slots=True)
class SampledToken:
    token: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...]  # the most likely first


@dataclass(frozen=True, slots=True)
class Sampled:
    tokens: tuple[SampledToken, ...]
    stop_reason: str  # "stop" or "length"
    cached_tokens: int  # of the prompt, which were not computed again


@dataclass(frozen=True, slots=True)
class SampleRefused:
    """Why there is no sample."""

    error: str


SampleEvent = SampleWaiting | Sampled | SampleRefused


class PlaygroundSampling:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._finishing: set[asyncio.Task[None]] = set()  # sessions, also of pages that were left

    async def sample(self, caller: Caller, order: SampleOrder) -> AsyncGenerator[SampleEvent, None]:
        """``SampleWaiting`` until the result is there, then ``Sampled`` or ``SampleRefused``.

        Closing or cancelling the iterator cancels the sample and finishes its session.
        """
        session_id: str | None = None
        request_id: str | None = None
        reason: FinishType = "interrupted"
        try:
            session_id = await self._open_session(caller)
            request_id = await self._submit(caller, order, session_id)
            async for event in self._follow(caller, request_id):
                reason = "success" if isinstance(event, Sampled) else reason
                yield event
        except (RequestError, Busy, Stalled, CatalogError) as error:
            reason = "errored"
            yield SampleRefused(str(error))
        except HTTPException as error:
            reason = "errored"
            yield SampleRefused(str(error.detail))
        finally:
            if request_id is not None:
                self._context.engine.sampling.cancel(request_id)  # does nothing once the sample is done
            if session_id is not None:
                await self._finish(caller, session_id, reason)

    async def _open_session(self, caller: Caller) -> str:
        request = CreateSessionRequest(sdk_version=SERVER_SDK, tags=["playground"], display_name="Playground")
        return (await create_session(request, self._context, caller)).session_id

    async def _submit(self, caller: Caller, order: SampleOrder, session_id: str) -> str:
        """Returns the id of the request."""
        wanted = CreateSamplingSessionRequest(
            session_id=session_id, sampling_session_seq_id=0, base_model=order.base_model, model_path=order.model_path
        )
        sampler = await create_sampling_session(wanted, self._context, caller)
        body = order.body(sampler.sampling_session_id)
        return (await submit_sample(self._context, caller, body)).request_id

    async def _follow(self, caller: Caller, request_id: str) -> AsyncIterator[SampleEvent]:
        context = self._context
        promise = await context.promise(request_id, caller)
        if promise is None:
            yield SampleRefused("the sample is gone: the server has too many results in memory; try again")
            return
        while (result := promise.result) is None:
            if context.engine.is_stopping:
                yield SampleRefused("the server is shutting down; try again when it is back")
                return
            yield SampleWaiting(context.engine.why_waiting(request_id))
            await context.polls.hold(promise.wait(_LOOK_SECONDS), timeout_seconds=_LOOK_SECONDS)
        context.engine.futures.delivered(promise)
        yield await asyncio.to_thread(_read, result)

    async def _finish(self, caller: Caller, session_id: str, reason: FinishType) -> None:
        """Goes on when the page is left meanwhile."""
        task = asyncio.create_task(self._finish_session(caller, session_id, reason))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        await asyncio.shield(task)

    async def _finish_session(self, caller: Caller, session_id: str, reason: FinishType) -> None:
        request = FinishSessionRequest(reason=FinishReason(type=reason))
        try:
            await finish_session(session_id, request, self._context, caller)
        except CatalogError as error:
            log.warning("playground session not finished session=%s error=%s", session_id, error)


def _read(result: Result) -> Sampled | SampleRefused:
    if result.is_failure:
        return SampleRefused(Failure.decode(result.body).error)
    message = pb.SampleResponse.FromString(result.body)
    [sequence] = message.sequences
    tokens = np.frombuffer(sequence.tokens, np.dtype("<i4")).tolist()
    logprobs = np.frombuffer(sequence.logprobs, np.dtype("<f4")).tolist()
    others = _alternatives(sequence.topk_sampled_logprobs, len(tokens))
    found = zip(tokens, logprobs, others, strict=True)
    return Sampled(
        tuple(SampledToken(token, logprob, alternatives) for token, logprob, alternatives in found),
        "length" if sequence.stop_reason == pb.STOP_REASON_LENGTH else "stop",
        message.prompt_cache_hit_tokens,
    )


def _alternatives(topk: pb.TopkLogprobs, positions: int) -> list[tuple[tuple[int, float], ...]]:
    if topk.length != positions or not topk.k:
        return [()] * positions
    tokens = np.frombuffer(topk.token_ids, np.dtype("<i4")).reshape(topk.length, topk.k)
    logprobs = np.frombuffer(topk.logprobs, np.dtype("<f4")).reshape(topk.length, topk.k)
    rows = zip(tokens.tolist(), logprobs.tolist(), strict=True)
    return [tuple(pair for pair in zip(*row, strict=True) if pair[1] != NO_LOGPROB) for row in rows]
