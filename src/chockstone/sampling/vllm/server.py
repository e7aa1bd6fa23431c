"""One vLLM server: what it can do, and whether it is healthy.

A background task checks its health. A server that is lost is probed with backoff until it is back; samples that were
running there fail, so that the fleet can retry them on another server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from math import exp
from pathlib import Path
from typing import Any, Final

from chockstone.sampling.vllm.adapters import AdapterFiles, Adapters
from chockstone.sampling.vllm.completion_request import Ability
from chockstone.sampling.vllm.connection import (
    Connection,
    VllmConnectionLost,
    VllmError,
    VllmRefused,
    has_no_output_layer,
)
from chockstone.sampling.vllm.gap_checks import GapChecks
from chockstone.sampling.vllm.head_probe import head_probe
from chockstone.sampling.vllm.model_facts import ModelFacts

log = logging.getLogger(__name__)
_HEALTH_SECONDS: Final = 2.0
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 10.0
_PROBE_SECONDS: Final = 120.0
_AT_ONCE: Final = 1024  # running requests, with a connection each: more than the sequences of its batch
_MISSES: Final = 2  # unanswered health checks; one refused connection is enough
_SCORED: Final = 5
_COOLER: Final = 0.1
_NOISE: Final = 0.01
Scores = Mapping[str, float]  # logprobs by token


class VllmUnusable(VllmError):
    """The server answers and cannot be used. The message says what to change."""


class VllmServer:
    def __init__(
        self,
        url: str,
        facts: Mapping[str, ModelFacts],
        *,
        directory: Path,
        most_adapters: int,
        gap_limit: float | None,
        on_change: Callable[[], None],
    ) -> None:
        """``facts``: of the base models to serve. Adapters are below ``directory``. ``gap_limit``: see GapChecks."""
        self.url = url
        self.abilities: dict[str, Ability] = {}  # by base model, as of the last probe
        self.problem: str | None = "it was not asked yet"  # None: healthy
        self.busy = 0  # samples that run or wait
        self._facts = facts
        self._directory = directory
        self._connection = Connection(url)
        self.adapters = Adapters(self._connection, most=most_adapters)
        self.gaps = GapChecks(limit=gap_limit)
        self._on_change = on_change
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._requests: set[asyncio.Task[Any]] = set()
        self._sent: set[asyncio.Task[Any]] = set()  # requests that were sent: the server may have crashed on them
        self._verifying: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self.problem is None

    async def probe(self) -> None:
        """Find out what the server can do, and start using it.

        Raises VllmConnectionLost, VllmUnusable or VllmRefused.
        """
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await self._probe()
        except TimeoutError as error:
            raise VllmConnectionLost(f"{self.url} answers, and generates nothing", was_sent=True) from error

    async def _probe(self) -> None:
        offer = await self._connection.offer()
        if not (served := self._facts.keys() & offer.models.keys()):
            raise VllmUnusable(
                f"the vLLM server at {self.url} serves {_list(offer.models)}, and this server {_list(self._facts)}; "
                f"start vLLM with --served-model-name and the name that --model gives here"
            )
        if not await self._connection.takes_adapters():
            raise VllmUnusable(
                f"the vLLM server at {self.url} takes no adapters; start it with --enable-lora, and with "
                f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment"
            )
        for name, directory in offer.adapters.items():
            if Path(directory).parent == self._directory:  # left by an earlier process of this server
                with suppress(VllmRefused):
                    await self._connection.unload_adapter(name)
        usual = await self._score(min(served), 1.0)
        is_tempered = _differ(usual, await self._score(min(served), _COOLER))
        try:
            has_head = await self._has_head(min(served), usual)
        except OSError as error:
            raise VllmUnusable(f"adapters cannot be written to {str(self._directory)!r}: {error}") from error
        self.abilities = {model: Ability(offer.models[model], is_tempered, has_head) for model in served}
        self._forget_loaded()
        self.problem = None
        names = ",".join(sorted(served))
        log.info("vllm server found url=%s models=%s tempered=%s head=%s", self.url, names, is_tempered, has_head)
        self._on_change()

    async def watch(self) -> None:
        """Check the health until cancelled."""
        pause, misses = _FIRST_PAUSE_SECONDS, 0
        while True:
            await asyncio.sleep(_HEALTH_SECONDS if self.is_up else pause)
            try:
                await (self._connection.check_health() if self.is_up else self.probe())
                pause, misses = _FIRST_PAUSE_SECONDS, 0
            except VllmError as error:
                misses += 1
                if self.is_up and isinstance(error, VllmConnectionLost) and error.was_sent and misses < _MISSES:
                    continue
                pause = _FIRST_PAUSE_SECONDS if self.is_up else min(2 * pause, _LONGEST_PAUSE_SECONDS)
                self.lose(str(error))
            except Exception as error:  # the watch must survive any error
                log.exception("vllm server not understood url=%s", self.url)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                self.lose(f"{self.url} is not understood: {type(error).__name__}: {error}")

    async def verify(self) -> None:
        """Check the health now, after a request failed."""
        if self._verifying is None:
            self._verifying = asyncio.create_task(self._verify())
        await asyncio.shield(self._verifying)

    def lose(self, reason: str) -> None:
        """Stop using the server until a probe succeeds; its running requests raise VllmConnectionLost."""
        if self.problem != reason:
            log.warning("vllm server not used url=%s reason=%s", self.url, reason)
        self.problem = reason
        self._forget_loaded()
        for request in self._requests:
            request.cancel()
        self._on_change()

    async def complete(self, body: dict[str, Any], files: AdapterFiles | None) -> Any:  # Any: plain JSON
        """Complete a request with its adapter loaded. Raises VllmError."""
        request = asyncio.create_task(self._complete(body, files))
        self._requests.add(request)
        self.busy += body["n"]
        try:
            return await request
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            was_sent = request in self._sent
            raise VllmConnectionLost(
                f"{self.url} was lost with the sample under way: {self.problem}", was_sent=was_sent
            ) from None
        finally:
            self.busy -= body["n"]
            self._requests.discard(request)
            self._sent.discard(request)

    async def close(self) -> None:
        await self.gaps.close()
        await self._connection.close()

    def _forget_loaded(self) -> None:
        """Another process may answer from now on: it has no adapters, and perhaps other weights or precision."""
        self.adapters.forget_all()
        self.gaps.forget_all()

    async def _complete(self, body: dict[str, Any], files: AdapterFiles | None) -> Any:
        async with self._turns:
            if (request := asyncio.current_task()) is not None:
                self._sent.add(request)
            async with nullcontext() if files is None else self.adapters.borrow(files):
                return await self._connection.complete(body)

    async def _verify(self) -> None:
        try:
            await self._connection.check_health()
        except VllmError as error:
            self.lose(str(error))
        finally:
            self._verifying = None

    async def _has_head(self, model: str, usual: Scores) -> bool:
        """Whether the server applies adapters of the output layer."""
        with head_probe(self._directory, self._facts[model]) as files:
            try:
                await self._connection.load_adapter(files.name, files.directory)
            except VllmRefused as error:
                if has_no_output_layer(error):
                    return False
                raise VllmUnusable(
                    f"the vLLM server at {self.url} cannot load an adapter from {str(self._directory)!r}: {error}. It "
                    f"must see the directory under this very path, and have been started with --enable-lora"
                ) from error
            try:
                return _differ(usual, await self._score(files.name, 1.0))
            finally:
                await self._connection.unload_adapter(files.name)

    async def _score(self, model: str, temperature: float) -> Scores:
        """Logprobs of the most likely tokens after a one-token prompt."""
        body = {"model": model, "prompt": [0], "max_tokens": 1, "seed": 0, "logprobs": _SCORED, "top_p": 1.0}
        body |= {"temperature": temperature, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        answer = await self._connection.complete(body | {"return_tokens_as_token_ids": True})
        try:
            logprobs = answer["choices"][0]["logprobs"]["top_logprobs"][0]
            scores = {str(token): float(score) for token, score in logprobs.items()}
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise VllmUnusable(f"{self.url} does not give logprobs as vLLM does: {error!r}") from error
        if not scores:
            raise VllmUnusable(f"{self.url} does not give logprobs as vLLM does: of no token at all")
        if any(score > 0 for score in scores.values()) or sum(map(exp, scores.values())) > 1 + _NOISE:
            raise VllmUnusable(
                f"the vLLM server at {self.url} gives logits for logprobs; start it with --logprobs-mode "
                f"raw_logprobs or processed_logprobs"
            )
        return scores


def _differ(scores: Scores, others: Scores) -> bool:
    """Compare the tokens that both have: each has its most likely ones and the one that was sampled."""
    common = scores.keys() & others.keys()
    return not common or any(abs(scores[token] - others[token]) > _NOISE for token in common)


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "nothing"
