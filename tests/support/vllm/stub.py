"""A vLLM server as far as its protocol goes: what the real one was seen to answer, over a model of numbers.

The next token depends on the last one and on the adapter alone. It can be made to hang, to fail and to die.
``ModelStub`` answers over a real model instead, and ignores adapters.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from aiohttp import web

VOCABULARY = 50
EOS = 3
MODEL = "tiny"
PROBE = "probe"
Floats = npt.NDArray[np.float64]


def logits_after(token: int, adapter: str) -> Floats:
    seed = hashlib.blake2b(f"{token}/{adapter}".encode(), digest_size=4).digest()
    return np.random.default_rng(int.from_bytes(seed, "little")).normal(0, 1.5, VOCABULARY)


def logprobs_after(token: int, adapter: str = "", *, temperature: float = 1.0) -> Floats:
    scaled = logits_after(token, adapter) / temperature
    return np.asarray(scaled - np.log(np.exp(scaled).sum()))


class Stub:
    def __init__(
        self,
        *,
        models: tuple[str, ...] = (MODEL,),
        is_tempered: bool = False,
        takes_adapters: bool = True,
        has_head: bool = False,
        context: int = 64,
        key: str | None = None,
    ) -> None:
        self.models = models
        self.is_tempered = is_tempered
        self.takes_adapters = takes_adapters
        self.has_head = has_head  # it adapts the output layer, and dies of prompts that it is to score
        self.context = context
        self.key = key
        self.adapters: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []  # loads and unloads
        self.requests: list[dict[str, Any]] = []  # completions, but for those that probe
        self.gate = asyncio.Event()  # completions wait for it
        self.gate.set()
        self.loads = asyncio.Event()  # loads wait for it
        self.loads.set()
        self.health = 200
        self.hangs = False
        self.refuses_adapters = False
        self.fails = 0  # so many completions
        self.failure = 500  # by which they do
        self.aborted = 0  # completions whose client went away
        self.nonsense: dict[str, Any] = {}  # that stands in answers to completions, but for those that probe
        self.offset = 0.0  # that is added to logprobs, which are logits then
        self.gap = 0.0  # by which the logprobs of sampled tokens are too low, but for requests that probe
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def logprobs(self, text: list[int], adapter: str, *, temperature: float) -> Floats:
        """Of the token that follows the text."""
        return logprobs_after(text[-1], adapter, temperature=temperature)

    async def start(self) -> None:
        """On the port that it had before, with nothing loaded."""
        self.adapters.clear()
        app = web.Application(middlewares=[self._at_the_door])
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        if self.takes_adapters:
            app.router.add_post("/v1/load_lora_adapter", self._load)
            app.router.add_post("/v1/unload_lora_adapter", self._unload)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def die(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _at_the_door(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if self.hangs:
            await asyncio.Event().wait()
        response: web.StreamResponse = await handler(request)
        return response

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def _models(self, _: web.Request) -> web.Response:
        cards: list[dict[str, Any]] = [
            {"id": name, "root": "/models/tiny", "parent": None, "max_model_len": self.context} for name in self.models
        ]
        for name, path in self.adapters.items():
            cards.append({"id": name, "root": path, "parent": self.models[0], "max_model_len": None})
        return web.json_response({"object": "list", "data": cards})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not body.get("lora_name"):
            return _error(400, "Field required")
        name = body["lora_name"]
        if name in self.adapters:
            return _error(400, f"The lora adapter '{name}' has already been loaded.")
        if self.refuses_adapters:
            return _error(500, "LoRA rank 64 is greater than max_lora_rank 16.")
        await asyncio.sleep(0.01)
        await self.loads.wait()
        if not _is_probe(name):
            self.calls.append(("load", name))
        self.adapters[name] = body["lora_path"]
        return web.Response(text="Success")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            return _error(404, f"The lora adapter '{name}' cannot be found.")
        if not _is_probe(name):
            self.calls.append(("unload", name))
        return web.Response(text="Success")

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        is_probe = "n" not in body
        if not is_probe:
            self.requests.append(body)
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.aborted += 1
                raise
        if not is_probe and self.fails:
            self.fails -= 1
            return _error(self.failure, "EngineCore encountered an issue.")
        if body["model"] not in (*self.models, *self.adapters):
            return _error(404, f"The model `{body['model']}` does not exist.")
        adapter = body["model"] if body["model"] in self.adapters else ""
        if _is_probe(adapter):  # its name is random; its scores differ clearly from the model's
            adapter = PROBE if self.has_head else ""
        if self.has_head and "prompt_logprobs" in body:
            return _error(500, "EngineCore encountered an issue.")
        nonsense = {} if is_probe else self.nonsense
        choices = [self._choice(body, adapter, index) | nonsense for index in range(body.get("n", 1))]
        usage = {"prompt_tokens": len(body["prompt"]), "prompt_tokens_details": {"cached_tokens": 2}}
        return web.json_response({"object": "text_completion", "choices": choices, "usage": usage})

    def _choice(self, body: dict[str, Any], adapter: str, index: int) -> dict[str, Any]:
        prompt, k, temperature = body["prompt"], body["logprobs"], body["temperature"]
        draw = random.Random((body.get("seed") or 0) + index)
        tokens, logprobs, rivals = [], [], []
        reason = "length"
        while len(tokens) < body["max_tokens"]:
            text = [*prompt, *tokens]
            drawn_from = self.logprobs(text, adapter, temperature=temperature or 1.0)
            told = drawn_from if self.is_tempered else self.logprobs(text, adapter, temperature=1.0)
            best = np.argsort(-drawn_from)
            kept = best[: body["top_k"] or len(best)]
            token = int(best[0])
            if temperature:
                token = draw.choices(kept.tolist(), np.exp(drawn_from[kept]).tolist())[0]
            tokens.append(token)
            logprobs.append(float(told[token]) + self.offset - (self.gap if "n" in body else 0.0))
            among = dict.fromkeys([token, *best[:k].tolist()])
            rivals.append({f"token_id:{each}": float(told[each]) + self.offset for each in among})
            if token in body.get("stop_token_ids", ()):
                reason = "stop"
                break
        choice: dict[str, Any] = {
            "index": index,
            "text": "",
            "token_ids": tokens,
            "finish_reason": reason,
            "stop_reason": None,
            "logprobs": {"token_logprobs": logprobs, "top_logprobs": rivals},
            "prompt_logprobs": None,
        }
        if (k := body.get("prompt_logprobs")) is not None:
            choice["prompt_logprobs"] = [None, *(self._scores(prompt, i, adapter, k) for i in range(1, len(prompt)))]
        return choice

    def _scores(self, prompt: list[int], position: int, adapter: str, k: int) -> dict[str, Any]:
        told = self.logprobs(prompt[:position], adapter, temperature=1.0)
        best = np.argsort(-told)
        among = dict.fromkeys([prompt[position], *best[:k].tolist()])
        return {str(each): {"logprob": float(told[each]), "rank": 1, "decoded_token": ""} for each in among}


def _is_probe(name: str) -> bool:
    return name.startswith("chockstone-probe-")


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "", "code": status}}, status=status)


@asynccontextmanager
async def running(*stubs: Stub) -> AsyncIterator[None]:
    for stub in stubs:
        await stub.start()
    try:
        yield
    finally:
        for stub in stubs:
            await stub.die()
