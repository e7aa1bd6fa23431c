"""The Messages API before a backend of numbers: the tests say what the model writes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anthropic
import pytest
from tokenizers import Tokenizer

from chockstone.api.admission.limits import ConnectionLimits
from chockstone.api.serving.http_server import http_config
from chockstone.wire.codecs.samples import StopReason
from support.api.loopback_server import serving
from support.api.users import KEYS, MODEL
from support.chat import HERMES, make_chat_model, written
from support.served import Served

HELPER = "helper"
Writes = Callable[..., None]


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    """``tiny`` has a chat template without tools, ``helper`` one with them."""
    return {
        MODEL: make_chat_model(tmp_path / "model"),
        HELPER: make_chat_model(tmp_path / "helper", template=HERMES),
    }


@pytest.fixture
def writes(served: Served, models: dict[str, Path]) -> Writes:
    """Says what the model writes from now on."""

    def write(text: str, *, stop_reason: StopReason = "stop") -> None:
        served.backend.sequences = written(models[HELPER], text, stop_reason=stop_reason)

    return write


@pytest.fixture
def texts_of(served: Served, models: dict[str, Path]) -> Callable[[], str]:
    """Reads the last prompt of the helper."""
    tokenizer = Tokenizer.from_file(str(models[HELPER] / "tokenizer.json"))

    def read() -> str:
        body = [body for word, _, body in served.backend.calls if word == "sample"][-1]
        [chunk] = json.loads(body)["prompt"]["chunks"]
        return str(tokenizer.decode(chunk["tokens"], skip_special_tokens=False))

    return read


@pytest.fixture
async def url(served: Served) -> AsyncIterator[str]:
    """Of the server, on loopback."""
    async with serving(http_config(served.app, ConnectionLimits())) as port:
        yield f"http://127.0.0.1:{port}"
    served.backend.let_everything_go()
    served.app.state.chat.tokenizers.close()


@pytest.fixture
async def client(url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """The unmodified SDK, with Ann's key."""
    async with anthropic.AsyncAnthropic(base_url=f"{url}/anthropic", api_key=KEYS["ann"], max_retries=0) as made:
        yield made
