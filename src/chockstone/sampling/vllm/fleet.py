"""The fleet: several vLLM servers as one. The least busy is asked first, and what fails there is done elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from chockstone.sampling.vllm.adapters import AdapterFiles, NotLoaded
from chockstone.sampling.vllm.completion_answer import StrangeAnswer, Unfinished, join_results, read_completion
from chockstone.sampling.vllm.completion_request import (
    can_answer,
    make_completion,
    most_tokens,
    split_samples,
    stop_tokens,
)
from chockstone.sampling.vllm.connection import Lost, Refused
from chockstone.sampling.vllm.model_facts import ModelFacts
from chockstone.sampling.vllm.server import Misfit, VllmServer
from chockstone.wire.failures import ServerFailure
from chockstone.wire.samples import SampleRequest, SampleResult

log = logging.getLogger(__name__)
_DEATHS: Final = 3  # of servers or connections, with one request under way
_MISSES: Final = 10  # of anything else that may pass
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 2.0
_LARGE_TOKENS: Final = 20_000  # of an answer that is read beside the event loop
_FAREWELL_SECONDS: Final = 3.0


class Fleet:
    def __init__(
        self,
        urls: Sequence[str],
        facts: Mapping[str, ModelFacts],
        *,
        directory: Path,
        most_adapters: int,
        patience_seconds: float = 600.0,
    ) -> None:
        """Adapters are below ``directory``. Needs a running event loop."""
        self._facts = facts
        self._patience_seconds = patience_seconds
        self._change = asyncio.Event()
        self._watches: list[asyncio.Task[None]] = []
        self._servers = [
            VllmServer(url, facts, directory=directory, most_adapters=most_adapters, on_change=self._changed)
            for url in urls
        ]

    async def start(self) -> None:
        """Meet the servers; those that cannot be reached are waited for. Raises Misfit for one that cannot be used.

        All models are known to be served then, or may be by who is not there yet.
        """
        met = await asyncio.gather(*(server.meet() for server in self._servers), return_exceptions=True)
        for server, error in zip(self._servers, met, strict=True):
            if isinstance(error, Lost):
                server.lose(str(error))
            elif isinstance(error, Refused):
                raise Misfit(f"the vLLM server at {server.url} cannot be used: {error}") from error
            elif error is not None:
                raise error
        missing = self._facts.keys() - {model for server in self._servers for model in server.abilities}
        if missing and all(server.is_up for server in self._servers):
            raise Misfit(
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

    async def can_answer(self, request: SampleRequest, model: str, files: AdapterFiles | None) -> bool:
        """Whether there is a server for it. Waits until at least one for this model was met."""
        met = await self._until(model, lambda: [server for server in self._servers if model in server.abilities])
        return any(self._is_able(server, request, model, files) for server in met)

    async def sample(
        self, request: SampleRequest, model: str, files: AdapterFiles | None, *, seed: int
    ) -> SampleResult:
        """A request that can be answered. ``seed`` is for one that names none. Raises ServerFailure."""
        first = await self._choose(request, model, files)
        parts = split_samples(request, self._facts[model], first.abilities[model])
        if len(parts) == 1:
            return join_results([await self._sample(request, parts[0], model, files, seed)], request)
        tasks = [asyncio.create_task(self._sample(request, part, model, files, seed)) for part in parts]
        try:
            return join_results(await asyncio.gather(*tasks), request)
        finally:
            for task in tasks:
                task.cancel()

    async def unload(self, name: str) -> None:
        """Have no server hold this adapter any more, as far as they can be reached."""
        await asyncio.gather(*(server.adapters.unload(name) for server in self._servers))

    async def say_goodbye(self) -> None:
        """Unload all adapters, if that takes no time."""
        names = {name for server in self._servers for name in server.adapters.names}
        with suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await asyncio.gather(*map(self.unload, names))

    async def _sample(
        self, request: SampleRequest, samples: range, model: str, files: AdapterFiles | None, seed: int
    ) -> SampleResult:
        facts, name = self._facts[model], model if files is None else files.name
        deaths = misses = 0
        pause = _FIRST_PAUSE_SECONDS
        while True:
            server = await self._choose(request, model, files)
            ability = server.abilities[model]
            body = make_completion(request, facts, ability, samples, model=name, seed=seed)
            try:
                answer = await server.complete(body, files)
                stops = stop_tokens(request.params, facts)
                if len(samples) * most_tokens(request, facts, ability) + len(request.prompt) < _LARGE_TOKENS:
                    return read_completion(answer, request, samples, stops=stops)
                return await asyncio.to_thread(read_completion, answer, request, samples, stops=stops)
            except (Lost, Unfinished) as error:
                reason: Exception = error
                deaths += error.was_sent if isinstance(error, Lost) else 1
                if server.is_up:
                    await server.verify()
            except NotLoaded as error:
                raise ServerFailure(f"the weights of this sampler cannot be used: {error}") from error
            except Refused as error:
                if error.status != 404:
                    raise ServerFailure(f"vLLM does not take the sample: {error}") from error
                reason = error
                if files is None:
                    server.lose(str(error))
                else:
                    server.adapters.forgotten(files.name)
            except StrangeAnswer as error:
                raise ServerFailure(f"{server.url} does not answer as vLLM does: {error}") from error
            misses += 1
            log.warning("sample not answered server=%s deaths=%d error=%s", server.url, deaths, reason)
            if deaths >= _DEATHS or misses >= _MISSES:
                raise ServerFailure(f"the sample failed {misses} times on vLLM, the last time because {reason}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _choose(self, request: SampleRequest, model: str, files: AdapterFiles | None) -> VllmServer:
        """The least busy of those that are well, and of several, one that has the adapter."""

        def able() -> list[VllmServer]:
            up = [server for server in self._servers if server.is_up]
            return [server for server in up if self._is_able(server, request, model, files)]

        return min(
            await self._until(model, able),
            key=lambda server: (server.busy, files is not None and files.name not in server.adapters.names),
        )

    async def _until(self, model: str, find: Callable[[], list[VllmServer]]) -> list[VllmServer]:
        """Wait until there is one, or patience ends."""
        try:
            async with asyncio.timeout(self._patience_seconds):
                while not (found := find()):
                    await self._change.wait()
                return found
        except TimeoutError:
            raise self._nobody(model) from None

    def _is_able(self, server: VllmServer, request: SampleRequest, model: str, files: AdapterFiles | None) -> bool:
        ability, has_head = server.abilities.get(model), files is not None and files.has_head
        return ability is not None and can_answer(request, self._facts[model], ability, has_head=has_head)

    def _nobody(self, model: str) -> ServerFailure:
        told = "; ".join(server.problem for server in self._servers if server.problem is not None)
        return ServerFailure(
            f"no vLLM server has been there for {model!r} in {self._patience_seconds:.0f} seconds"
            f"{f': {told}' if told else ''}. Sample again when one is."
        )

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
