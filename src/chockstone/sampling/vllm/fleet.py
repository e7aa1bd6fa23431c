"""A pool of vLLM servers: sends each sample to the least busy server, and retries a failed one on another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from chockstone.sampling.vllm.adapters import AdapterFiles, NotLoaded
from chockstone.sampling.vllm.completion_answer import UnexpectedAnswer, Unfinished, join_results, read_completion
from chockstone.sampling.vllm.completion_request import can_answer, make_completion, most_tokens, split_samples
from chockstone.sampling.vllm.connection import UNKNOWN, VllmConnectionLost, VllmError, VllmRefused
from chockstone.sampling.vllm.model_facts import ModelFacts
from chockstone.sampling.vllm.server import VllmServer, VllmUnusable
from chockstone.wire.codecs.samples import SampleRequest, SampleResult
from chockstone.wire.failures import ServerFailure

log = logging.getLogger(__name__)
_DEATHS: Final = 3  # of servers or connections while one request was running there
_MISSES: Final = 10  # failed attempts of any kind for one request
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 2.0
_LARGE_TOKENS: Final = 20_000  # of an answer; from here on a thread decodes it
_UNLOAD_SECONDS: Final = 3.0


class Fleet:
    def __init__(
        self,
        urls: Sequence[str],
        facts: Mapping[str, ModelFacts],
        *,
        directory: Path,
        most_adapters: int,
        wait_seconds: float = 600.0,
    ) -> None:
        """Adapters are below ``directory``. Needs a running event loop."""
        self._facts = facts
        self._wait_seconds = wait_seconds
        self._change = asyncio.Event()
        self._watches: list[asyncio.Task[None]] = []
        self._servers = [
            VllmServer(url, facts, directory=directory, most_adapters=most_adapters, on_change=self._changed)
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
        self, request: SampleRequest, model: str, files: AdapterFiles | None, *, seed: int
    ) -> SampleResult | None:
        """None: no server can give exactly what the request asks for. Waits until a server of this model was probed.

        ``seed`` is used if the request has none. Raises ServerFailure.
        """
        first = await self._choose(request, model, files)
        if first is None:
            return None
        parts = split_samples(request, self._facts[model], first.abilities[model])
        tasks = [asyncio.create_task(self._sample(request, part, model, files, seed)) for part in parts]
        try:
            results = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        answered = [result for result in results if result is not None]
        return join_results(answered, request) if len(answered) == len(parts) else None

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
        self, request: SampleRequest, samples: range, model: str, files: AdapterFiles | None, seed: int
    ) -> SampleResult | None:
        facts, name = self._facts[model], model if files is None else files.name
        tries, pause = _Tries(), _FIRST_PAUSE_SECONDS
        while (server := await self._choose(request, model, files, without=tries.unfit)) is not None:
            ability = server.abilities[model]
            body = make_completion(request, facts, ability, samples, model=name, seed=seed)
            try:
                answer = await server.complete(body, files)
                most = most_tokens(request, facts, ability)
                read = partial(read_completion, answer, request, samples, facts=facts, most_tokens=most)
                is_large = len(samples) * most + len(request.prompt) >= _LARGE_TOKENS
                return await asyncio.to_thread(read) if is_large else read()
            except (VllmError, Unfinished, UnexpectedAnswer) as error:
                await tries.count(error, server, is_of_adapter=files is not None)
                log.warning("sample not answered server=%s deaths=%d error=%s", server.url, tries.deaths, error)
                able = self._able(request, model, files)
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
        self,
        request: SampleRequest,
        model: str,
        files: AdapterFiles | None,
        *,
        without: Collection[VllmServer] = (),
    ) -> VllmServer | None:
        """The least busy healthy server, preferring one that has the adapter. None: no server can answer the request.

        Waits until there is one. Raises ServerFailure after ``wait_seconds``.
        """
        try:
            async with asyncio.timeout(self._wait_seconds):
                while True:
                    able = self._able(request, model, files)
                    if up := [server for server in able if server.is_up and server not in without]:
                        break
                    if not able and any(model in server.abilities for server in self._servers):
                        return None
                    await self._change.wait()
        except TimeoutError:
            raise self._unavailable(model) from None
        return min(up, key=lambda server: (server.busy, files is not None and files.name not in server.adapters.names))

    def _able(self, request: SampleRequest, model: str, files: AdapterFiles | None) -> list[VllmServer]:
        """The servers that could answer the request when they were last probed."""
        return [server for server in self._servers if self._is_able(server, request, model, files)]

    def _is_able(self, server: VllmServer, request: SampleRequest, model: str, files: AdapterFiles | None) -> bool:
        ability, has_head = server.abilities.get(model), files is not None and files.has_head
        return ability is not None and can_answer(request, self._facts[model], ability, has_head=has_head)

    def _unavailable(self, model: str) -> ServerFailure:
        problems = "; ".join(server.problem for server in self._servers if server.problem is not None)
        return ServerFailure(
            f"no vLLM server has been there for {model!r} in {self._wait_seconds:.0f} seconds"
            f"{f': {problems}' if problems else ''}. Sample again when one is."
        )

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()


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
            if not is_of_adapter:
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
