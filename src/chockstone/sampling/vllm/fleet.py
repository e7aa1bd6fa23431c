"""A pool of vLLM servers: sends each sample to the least busy server, and retries a failed one on another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from chockstone.sampling.vllm.adapters import AdapterFiles, NotLoaded
from chockstone.sampling.vllm.completion_answer import UnexpectedAnswer, Unfinished, join_results, read_completion
from chockstone.sampling.vllm.completion_request import can_answer, make_completion, most_tokens, split_samples
from chockstone.sampling.vllm.connection import UNKNOWN, VllmConnectionLost, VllmError, VllmRefused
from chockstone.sampling.vllm.gap_probe import ExactPath, NotScored, compare, drawn_text, probe_requests
from chockstone.sampling.vllm.model_facts import ModelFacts
from chockstone.sampling.vllm.server import VllmServer, VllmUnusable
from chockstone.wire.codecs.samples import SampledSequence, SampleRequest, SampleResult
from chockstone.wire.failures import ServerFailure
from chockstone.wire.sampler_gap import SamplerGap

log = logging.getLogger(__name__)
_DEATHS: Final = 3  # of servers or connections while one request was running there
_MISSES: Final = 10  # failed attempts of any kind for one request
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 2.0
_LARGE_TOKENS: Final = 20_000  # of an answer; from here on a thread decodes it
_UNLOAD_SECONDS: Final = 3.0
_MEASURE_SECONDS: Final = 600.0


class Fleet:
    def __init__(
        self,
        urls: Sequence[str],
        facts: Mapping[str, ModelFacts],
        *,
        directory: Path,
        most_adapters: int,
        gap_limit: float | None = None,
        wait_seconds: float = 600.0,
    ) -> None:
        """Adapters are below ``directory``. Needs a running event loop.

        ``gap_limit``: a server samples only from weights whose gap it was measured to keep within this limit. None: no
        gap is measured before samples.
        """
        self._facts = facts
        self._gap_limit = gap_limit
        self._wait_seconds = wait_seconds
        self._change = asyncio.Event()
        self._watches: list[asyncio.Task[None]] = []
        self._servers = [
            VllmServer(
                url,
                facts,
                directory=directory,
                most_adapters=most_adapters,
                gap_limit=gap_limit,
                on_change=self._changed,
            )
            for url in urls
        ]

    async def start(self) -> None:
        """Probe the servers; those that cannot be reached are probed again in the background.

        Raises VllmUnusable for a server that answers and cannot be used, and for a model that no server serves.
        """
        probed = await asyncio.gather(*(server.probe() for server in self._servers), return_exceptions=True)
        for server, error in zip(self._servers, probed, strict=True):
            if isinstance(error, VllmConnectionLost):
                server.lose(str(error))
            elif isinstance(error, VllmRefused):
                raise VllmUnusable(f"the vLLM server at {server.url} cannot be used: {error}") from error
            elif error is not None:
                raise error
        missing = self._facts.keys() - {model for server in self._servers for model in server.abilities}
        if missing and all(server.is_up for server in self._servers):
            raise VllmUnusable(
                f"no vLLM server serves the model {min(missing)!r}; add the --vllm-url of one that does, or leave "
                f"its --model out"
            )
        self._watches = [asyncio.create_task(server.watch()) for server in self._servers]

    async def close(self) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        for server in self._servers:
            await server.close()

    async def sample(
        self,
        request: SampleRequest,
        model: str,
        files: AdapterFiles | None,
        *,
        seed: int,
        exact: ExactPath | None = None,
    ) -> SampleResult | None:
        """None: no server can give exactly what the request asks for, or none keeps within the limit of the gap.

        Waits until a server of this model was probed. ``seed`` is used if the request has none. Raises ServerFailure,
        and what ``exact`` raises. Without ``exact`` no gap is measured.
        """
        weights = _Weights(model, files, exact)
        self._repeat_failed_probes(weights)
        first = await self._choose(request, weights)
        if first is None:
            return None
        parts = split_samples(request, self._facts[model], first.abilities[model])
        tasks = [asyncio.create_task(self._sample(request, part, weights, seed)) for part in parts]
        try:
            results = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        answered = [result for result in results if result is not None]
        return join_results(answered, request) if len(answered) == len(parts) else None

    async def measure_gaps(self, model: str, files: AdapterFiles | None, exact: ExactPath) -> list[SamplerGap]:
        """Measure the gap of these weights on each server of the model, now. A gap that cannot be measured says why."""
        servers = [server for server in self._servers if model in server.abilities or not server.abilities]
        weights = _Weights(model, files, exact)
        return await asyncio.gather(*(self._measure_or_explain(server, weights, exact) for server in servers))

    def exceeding_gaps(self) -> list[SamplerGap]:
        """Of weights that a server may not sample from, and that samples asked for in the last hour."""
        return [gap for server in self._servers for gap in server.gaps.exceeding()]

    def forget_gaps(self, archive: str) -> None:
        for server in self._servers:
            server.gaps.forget(archive)

    async def unload(self, name: str) -> None:
        """Unload an adapter from all servers that can be reached."""
        await asyncio.gather(*(server.adapters.unload(name) for server in self._servers))

    async def unload_all(self) -> None:
        """Unload all adapters; gives up after a few seconds."""
        names = {name for server in self._servers for name in server.adapters.names}
        with suppress(TimeoutError):
            async with asyncio.timeout(_UNLOAD_SECONDS):
                await asyncio.gather(*map(self.unload, names))

    async def _sample(
        self, request: SampleRequest, samples: range, weights: _Weights, seed: int
    ) -> SampleResult | None:
        facts = self._facts[weights.model]
        tries, pause = _Tries(), _FIRST_PAUSE_SECONDS
        while (server := await self._choose(request, weights, without=tries.unfit)) is not None:
            ability = server.abilities[weights.model]
            body = make_completion(request, facts, ability, samples, model=weights.name, seed=seed)
            try:
                if await self._has_measured(server, weights):
                    continue  # choose again: the load has changed, and the server may be above the limit
                answer = await server.complete(body, weights.files)
                most = most_tokens(request, facts, ability)
                read = partial(read_completion, answer, request, samples, facts=facts, most_tokens=most)
                is_large = len(samples) * most + len(request.prompt) >= _LARGE_TOKENS
                return await asyncio.to_thread(read) if is_large else read()
            except (VllmError, Unfinished, UnexpectedAnswer) as error:
                await tries.count(error, server, is_of_adapter=weights.files is not None)
                log.warning("sample not answered server=%s deaths=%d error=%s", server.url, tries.deaths, error)
                able = self._able(request, weights)
                if server in tries.unfit and all(other in tries.unfit for other in able if other.is_up):
                    raise ServerFailure(_explain(error, server)) from error
                if tries.deaths >= _DEATHS or tries.misses >= _MISSES:
                    raise ServerFailure(
                        f"the sample failed {tries.misses} times on vLLM, the last time because {error}"
                    ) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return None

    async def _choose(
        self, request: SampleRequest, weights: _Weights, *, without: Collection[VllmServer] = ()
    ) -> VllmServer | None:
        """The least busy healthy server, preferring one that has the adapter. None: no server can answer the request.

        Waits until there is one. Raises ServerFailure after ``wait_seconds``.
        """
        try:
            async with asyncio.timeout(self._wait_seconds):
                while True:
                    able = self._able(request, weights)
                    if up := [server for server in able if server.is_up and server not in without]:
                        break
                    if not able and any(weights.model in server.abilities for server in self._servers):
                        return None
                    if any(server.is_up and self._is_too_far(server, weights) for server in self._servers):
                        return None  # the worker need not wait for a lost server
                    await self._change.wait()
        except TimeoutError:
            raise self._unavailable(weights.model) from None
        files = weights.files
        return min(up, key=lambda server: (server.busy, files is not None and files.name not in server.adapters.names))

    def _able(self, request: SampleRequest, weights: _Weights) -> list[VllmServer]:
        """The servers that could answer the request when they were last probed, and may serve these weights."""
        return [server for server in self._servers if self._is_able(server, request, weights)]

    def _is_able(self, server: VllmServer, request: SampleRequest, weights: _Weights) -> bool:
        ability, facts = server.abilities.get(weights.model), self._facts[weights.model]
        if ability is None or not can_answer(request, facts, ability, has_head=weights.has_head):
            return False
        return not self._is_too_far(server, weights)

    def _is_too_far(self, server: VllmServer, weights: _Weights) -> bool:
        """Whether the gap of these weights on the server is known, and above the limit."""
        return weights.exact is not None and not server.gaps.may_serve(weights.model, weights.exact.archive)

    async def _has_measured(self, server: VllmServer, weights: _Weights) -> bool:
        """Whether the gap had to be measured, and is known now. Raises as a sample would."""
        if (exact := weights.exact) is None:
            return False
        measure = partial(self._measure_gap, server, weights, exact)
        return await server.gaps.measure_once(weights.model, exact.archive, measure)

    def _repeat_failed_probes(self, weights: _Weights) -> None:
        """In the background: this sample and others go where they would without."""
        if (exact := weights.exact) is None:
            return
        for server in self._servers:
            if server.is_up and weights.model in server.abilities:
                measure = partial(self._measure_gap, server, weights, exact)
                server.gaps.repeat_failed(weights.model, exact.archive, measure)

    async def _measure_or_explain(self, server: VllmServer, weights: _Weights, exact: ExactPath) -> SamplerGap:
        try:
            if not server.is_up:
                raise VllmConnectionLost(f"the server is not used: {server.problem}", was_sent=False)
            measure = partial(self._measure_gap, server, weights, exact)
            return await server.gaps.measure(weights.model, exact.archive, measure)
        except (VllmError, Unfinished) as error:
            return SamplerGap(
                server=server.url,
                base_model=weights.model,
                archive=exact.archive,
                trouble=str(error),
                was_asked=False,
            )

    async def _measure_gap(self, server: VllmServer, weights: _Weights, exact: ExactPath) -> SamplerGap:
        """Run the probe and report the gap. Raises errors of the connection and of the adapter, as a sample would."""
        gap = SamplerGap(server=server.url, base_model=weights.model, archive=exact.archive)
        facts, ability = self._facts[weights.model], server.abilities[weights.model]
        requests = probe_requests(facts, ability)
        try:
            if not requests:
                raise NotScored(f"the context of {ability.max_context} is too short for the probe")
            if not can_answer(requests[0], facts, ability, has_head=weights.has_head):
                raise NotScored(
                    "the server does not apply adapters to the output layer, and this adapter has that part"
                )
            async with asyncio.timeout(_MEASURE_SECONDS):
                drawn = await asyncio.gather(*(self._draw(server, weights, request) for request in requests))
                texts = [drawn_text(request, each) for request, each in zip(requests, drawn, strict=True)]
                mean, largest, tokens = compare(drawn, await exact.score(texts))
            gap = replace(gap, mean=mean, largest=largest, tokens=tokens)
        except UnexpectedAnswer as error:
            gap = replace(gap, trouble=f"{server.url} does not answer as vLLM does: {error}")
        except NotScored as error:
            gap = replace(gap, trouble=str(error))
        except TimeoutError:
            gap = replace(gap, trouble=f"the probe took longer than {_MEASURE_SECONDS:.0f} seconds")
        except VllmRefused as error:
            if error.status == UNKNOWN:
                raise
            gap = replace(gap, trouble=f"vLLM does not take the probe: {error}")
        self._log(gap)
        await exact.on_measured(gap)
        return gap

    def _log(self, gap: SamplerGap) -> None:
        name = gap.base_model if gap.archive is None else gap.archive
        if gap.is_within(self._gap_limit):
            log.info(
                "sampler gap measured server=%s weights=%s mean=%.2g largest=%.2g tokens=%d",
                *(gap.server, name, gap.mean, gap.largest, gap.tokens),
            )
        elif gap.mean is None:
            log.warning("sampler gap not measured server=%s weights=%s reason=%s", gap.server, name, gap.trouble)
        else:
            log.warning(
                "sampler gap above the limit server=%s weights=%s mean=%.2g largest=%.2g limit=%g",
                *(gap.server, name, gap.mean, gap.largest, self._gap_limit),
            )

    async def _draw(self, server: VllmServer, weights: _Weights, request: SampleRequest) -> SampledSequence:
        facts, ability = self._facts[weights.model], server.abilities[weights.model]
        body = make_completion(request, facts, ability, range(1), model=weights.name, seed=0)
        answer = await server.complete(body, weights.files)
        most = most_tokens(request, facts, ability)
        return read_completion(answer, request, range(1), facts=facts, most_tokens=most).sequences[0]

    def _unavailable(self, model: str) -> ServerFailure:
        problems = "; ".join(server.problem for server in self._servers if server.problem is not None)
        return ServerFailure(
            f"no vLLM server has been there for {model!r} in {self._wait_seconds:.0f} seconds"
            f"{f': {problems}' if problems else ''}. Sample again when one is."
        )

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()


@dataclass(frozen=True, slots=True)
class _Weights:
    model: str
    files: AdapterFiles | None  # None: the base model itself
    exact: ExactPath | None  # None: the gap is not measured

    @property
    def name(self) -> str:
        """By which the servers know them."""
        return self.model if self.files is None else self.files.name

    @property
    def has_head(self) -> bool:
        return self.files is not None and self.files.has_head


@dataclass(slots=True)
class _Tries:
    """Failed attempts of one sample."""

    deaths: int = 0
    misses: int = 0  # of every kind
    unfit: set[VllmServer] = field(default_factory=set)  # healthy servers that refuse this sample

    async def count(self, error: Exception, server: VllmServer, *, is_of_adapter: bool) -> None:
        """Count a failure. A broken server is not used any more; a healthy one is not asked for this sample again."""
        self.misses += 1
        if isinstance(error, VllmRefused) and error.status == UNKNOWN:
            if is_of_adapter:
                server.gaps.forget_all()  # it has lost its adapters: it may be another process
            else:
                server.lose(str(error))
            return
        if server.is_up:
            await server.verify()  # a server whose engine died while loading the adapter refuses, too
        if isinstance(error, VllmConnectionLost):
            self.deaths += error.was_sent
        elif isinstance(error, Unfinished) or not server.is_up:
            self.deaths += 1
        else:
            self.unfit.add(server)


def _explain(error: Exception, server: VllmServer) -> str:
    match error:
        case NotLoaded():
            return f"the weights of this sampler cannot be used: {error}"
        case UnexpectedAnswer():
            return f"{server.url} does not answer as vLLM does: {error}"
        case _:
            return f"vLLM does not take the sample: {error}"
