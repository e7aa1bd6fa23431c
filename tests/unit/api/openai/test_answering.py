from __future__ import annotations

import threading

import pytest

from chockstone.api.chat.chat_service import ChatService
from chockstone.api.chat.generation import Delta, SampledText
from chockstone.api.chat.orders import GenerationParameters, PlainPrompt
from chockstone.api.openai.answering import encode_delta, generate_all, stream_error, whole_answer
from chockstone.api.users import Caller
from chockstone.wire.failures import BadRequest, ServerFailure
from support.api.users import MODEL
from support.engine.making import until
from support.served import Served


async def test_a_prompt_that_fails_leaves_nothing_under_way(served: Served) -> None:
    chat: ChatService = served.app.state.chat
    model = await chat.find_model(Caller("ann"), MODEL)
    served.backend.hold("token 1")
    served.backend.fail_next("sample", BadRequest("too long"))

    with pytest.raises(BadRequest, match="too long"):
        await generate_all(chat, model, (PlainPrompt("a"), PlainPrompt("b")), GenerationParameters())

    served.backend.let_everything_go()
    await until(lambda: served.engine.sampling.waiting == 0)
    chat.tokenizers.close()


@pytest.mark.parametrize("tokens", [1, 100_000])
async def test_an_answer_is_json(tokens: int) -> None:
    answer = await whole_answer(lambda: {"a": "é"}, tokens=tokens)

    assert answer.body == '{"a":"é"}'.encode()


@pytest.mark.parametrize(("tokens", "is_on_the_loop"), [(1, True), (300, False)])
async def test_a_large_delta_is_encoded_beside_the_event_loop(tokens: int, is_on_the_loop: bool) -> None:
    """As a vLLM server gives all of its tokens at once."""
    delta = Delta(0, (), tuple([SampledText(5, b"x", -1.0)] * tokens))

    def encode(found: Delta) -> list[bytes]:
        return [str(len(found.tokens)).encode(), str(threading.current_thread() is threading.main_thread()).encode()]

    assert await encode_delta(delta, encode) == f"{tokens}{is_on_the_loop}".encode()


def test_errors_in_a_stream_say_who_must_act() -> None:
    assert stream_error(BadRequest("x"))["error"]["type"] == "invalid_request_error"
    assert stream_error(ServerFailure("x"))["error"]["type"] == "server_error"
