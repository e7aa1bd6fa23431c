"""The vLLM backend: a backend whose samples are taken by vLLM servers. All else, the worker does.

A sample that vLLM cannot give exactly as asked is the worker's as well: it has the models, too. So are the samples from
weights whose log-probabilities by vLLM are too far from the worker's.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from chockstone.backends.calls import ReplyT, WorkerCall, WorkerCalls
from chockstone.backends.export.published_adapters import DirectoryTaken, PublishedAdapters
from chockstone.backends.protocol import (
    OnPieces,
    SampleCall,
    SampledWeights,
    SampleReply,
    SamplerGap,
    WorkerLost,
    WorkerStatus,
)
from chockstone.backends.supervision.supervisor import WorkerSupervisor
from chockstone.checkpoints import Store
from chockstone.sampling.vllm.adapters import AdapterFiles
from chockstone.sampling.vllm.fleet import Fleet
from chockstone.sampling.vllm.gap_probe import ExactPath, NotScored
from chockstone.sampling.vllm.model_facts import read_facts
from chockstone.sampling.vllm.server import VllmUnusable
from chockstone.wire.codecs.sample_request import decode_sample, limit_context
from chockstone.wire.codecs.sample_result import encode_sample_result, read_prompt_logprobs
from chockstone.wire.codecs.samples import Floats, SampleRequest, Tokens
from chockstone.wire.failures import BadRequest, RequestError
from chockstone.wire.model_names import ModelName

log = logging.getLogger(__name__)
T = TypeVar("T")
_LARGE_BYTES: Final = 1 << 16  # of a request or a result that is read or written beside the event loop
_FILES_PER_PLACE: Final = 2  # adapters that stay on disk for each that a server may hold


class CannotSample(Exception):
    """The settings and the vLLM servers do not go together; the message says what to do."""


@dataclass(frozen=True, slots=True)
class VllmPlan:
    urls: Sequence[str]
    models: Mapping[str, Path]  # name → directory of the base model
    adapters: Path  # a directory that the servers see under the same path
    most_adapters: int  # on one server
    are_shared: bool = False  # adapters, with servers that run as other users
    gap_limit: float | None = None  # see GapMeter


async def _report_nothing(_: SamplerGap) -> None:
    pass


class VllmBackend(WorkerCalls):
    """Also a GapMeter."""

    def __init__(
        self,
        worker: WorkerSupervisor,
        plan: VllmPlan,
        store: Store,
        *,
        on_gap: Callable[[SamplerGap], Awaitable[None]] = _report_nothing,
    ) -> None:
        """``store`` is the worker's. Needs a running event loop.

        ``on_gap`` gets each gap that was measured, before samples are taken because of it.
        """
        self._worker = worker
        self._on_gap = on_gap
        self.gap_limit, self.servers = plan.gap_limit, tuple(plan.urls)
        directory = plan.adapters.absolute()
        facts = {name: read_facts(name, model) for name, model in plan.models.items()}
        self._fleet = Fleet(
            plan.urls, facts, directory=directory, most_adapters=plan.most_adapters, gap_limit=plan.gap_limit
        )
        most_files = _FILES_PER_PLACE * plan.most_adapters * len(plan.urls)
        self._published = PublishedAdapters(
            store, directory, most=most_files, on_leaving=self._fleet.unload, is_shared=plan.are_shared
        )
        self._under_way: dict[str, asyncio.Task[SampleReply]] = {}

    @classmethod
    async def open(
        cls,
        worker: WorkerSupervisor,
        plan: VllmPlan,
        store: Store,
        *,
        on_gap: Callable[[SamplerGap], Awaitable[None]] = _report_nothing,
    ) -> VllmBackend:
        """One that knows its servers. Raises CannotSample, with nothing left open."""
        try:
            backend = cls(worker, plan, store, on_gap=on_gap)
        except (OSError, ValueError) as error:
            raise CannotSample(str(error)) from error
        try:
            backend._published.open()
            await backend._fleet.start()
        except BaseException as error:
            backend._published.close()
            await backend._fleet.close()
            if isinstance(error, VllmUnusable):
                raise CannotSample(str(error)) from error
            if isinstance(error, OSError | DirectoryTaken):
                raise CannotSample(f"adapters cannot be published: {error}; choose another --vllm-adapters") from error
            raise
        return backend

    @property
    def is_ready(self) -> bool:
        return self._worker.is_ready

    @property
    def generation(self) -> int:
        return self._worker.generation

    @property
    def trouble(self) -> str | None:
        return self._worker.trouble

    @property
    def status(self) -> WorkerStatus:
        return self._worker.status

    @property
    def environment(self) -> Mapping[str, Any]:
        return self._worker.environment

    async def ready(self) -> None:
        await self._worker.ready()

    async def start(self) -> None:
        await self._worker.start()

    async def stop(self) -> None:
        await self._worker.stop()
        await self._fleet.unload_all()
        await asyncio.to_thread(self._published.close)
        await self._fleet.close()

    async def send(
        self,
        call: WorkerCall,
        reply: type[ReplyT],
        *,
        on_release: Callable[[], None] = lambda: None,
        on_pieces: OnPieces = lambda _: None,
        generation: int | None = None,
    ) -> ReplyT:
        return await self._worker.send(call, reply, on_release=on_release, on_pieces=on_pieces, generation=generation)

    async def sample(self, call: SampleCall, *, on_pieces: OnPieces = lambda _: None) -> SampleReply:
        """What vLLM answers is there all at once: there are no pieces of it."""
        sampling = self._under_way[call.key] = asyncio.create_task(self._sample(call, on_pieces))
        try:
            return await sampling
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise BadRequest("the sample was cancelled") from None
        finally:
            self._under_way.pop(call.key, None)

    async def cancel(self, key: str) -> None:
        if (sampling := self._under_way.get(key)) is not None:
            sampling.cancel()
        await self._worker.cancel(key)

    async def forget(self, archive: str) -> None:
        try:
            await self._worker.forget(archive)
        finally:  # also when the worker has died, and its memory is lost
            self._fleet.forget_gaps(archive)
            await self._published.forget(archive)

    async def measure_gaps(self, weights: SampledWeights) -> Sequence[SamplerGap]:
        model, exact = ModelName.parse(weights.base_model).base, self._exact_path(weights)
        if weights.archive is None:
            return await self._fleet.measure_gaps(model, None, exact)
        if not self._published.knows(weights.archive):
            await self._worker.written(weights.archive)
        async with self._published.lent(weights.archive, seal=weights.seal) as files:
            return await self._fleet.measure_gaps(model, files, exact)

    def exceeding_gaps(self) -> Sequence[SamplerGap]:
        return self._fleet.exceeding_gaps()

    async def _sample(self, call: SampleCall, on_pieces: OnPieces) -> SampleReply:
        limit = ModelName.parse(call.base_model).max_context
        decoded = await _beside_loop(lambda: decode_sample(orjson.loads(call.body)), size_bytes=len(call.body))
        request = limit_context(decoded, limit)
        if call.archive is None:
            return await self._ask(request, call, None, on_pieces)
        if not self._published.knows(call.archive):
            await self._worker.written(call.archive)  # a snapshot is written in the background
        try:
            async with self._published.lent(call.archive, seal=call.seal) as files:
                return await self._ask(request, call, files, on_pieces)
        except RequestError as error:
            if error.code != "missing":
                raise
        return await self._worker.sample(
            call, on_pieces=on_pieces
        )  # it may have in memory what did not fit on the disk

    async def _ask(
        self, request: SampleRequest, call: SampleCall, files: AdapterFiles | None, on_pieces: OnPieces
    ) -> SampleReply:
        name = ModelName.parse(call.base_model).base
        exact = self._exact_path(
            SampledWeights(base_model=name, owner=call.owner, archive=call.archive, seal=call.seal)
        )
        result = await self._fleet.sample(request, name, files, seed=call.seed, exact=exact)
        if result is None:
            log.debug("sample left to the worker request=%s model=%s", call.key, call.base_model)
            return await self._worker.sample(call, on_pieces=on_pieces)
        tokens = sum(len(sequence.tokens) for sequence in result.sequences)
        encoded = await _beside_loop(lambda: encode_sample_result(result, request), size_bytes=8 * tokens)
        return SampleReply(content=encoded, tokens=tokens, prompt_tokens=len(request.prompt))

    def _exact_path(self, weights: SampledWeights) -> ExactPath:
        return ExactPath(weights.archive, partial(self._score, weights), self._on_gap)

    async def _score(self, weights: SampledWeights, texts: Sequence[Tokens]) -> Sequence[Floats]:
        """The worker's log-probabilities of all tokens but the first. Raises NotScored, and WorkerLost."""
        try:
            return await asyncio.gather(*(self._score_text(weights, text) for text in texts))
        except WorkerLost:
            raise
        except RequestError as error:
            raise NotScored(f"the worker cannot score the probe: {error}") from error

    async def _score_text(self, weights: SampledWeights, text: Tokens) -> Floats:
        call = SampleCall(
            key=f"gap-{secrets.token_hex(8)}",
            base_model=ModelName.parse(weights.base_model).base,
            seed=0,
            body=_scoring_body(text),
            owner=weights.owner,
            archive=weights.archive,
            seal=weights.seal,
        )
        scores = read_prompt_logprobs((await self._worker.sample(call)).result)
        if scores is None or len(scores) != len(text):
            raise NotScored("the worker did not score the probe")
        return scores[1:]


def _scoring_body(text: Tokens) -> bytes:
    """The request for a text's log-probabilities, as clients send it."""
    return orjson.dumps(
        {
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": text.tolist()}]},
            "sampling_params": {"max_tokens": 1},
            "prompt_logprobs": True,
        }
    )


async def _beside_loop(work: Callable[[], T], *, size_bytes: int) -> T:
    return await asyncio.to_thread(work) if size_bytes > _LARGE_BYTES else work()
