from __future__ import annotations

from chockstone.api.chat.generation import Delta, Finish, SampledText
from chockstone.api.chat.request_fields import RequestFields
from chockstone.api.chat.tool_calls import ToolCall
from chockstone.api.openai.answer_head import AnswerHead
from chockstone.api.openai.chat.chat_answer import ChatAnswer, message_of
from chockstone.api.openai.chat.chat_request import ChatRequest, read_chat_request
from support.chat import CALL, generated

HEAD = AnswerHead("chatcmpl-1", "tiny", 0, None)
TOKEN = SampledText(1, b"a", -0.5)


def request_of(**more: object) -> ChatRequest:
    sent = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **more}
    return read_chat_request(RequestFields(sent))


async def test_tokens_whose_text_is_held_back_are_sent_where_they_are_asked_for() -> None:
    generation = await generated("x")
    silent = ChatAnswer(HEAD, request_of(), generation)
    telling = ChatAnswer(HEAD, request_of(logprobs=True), generation)
    for answer in (silent, telling):
        list(answer.chunks(Delta(0, ("a",), ())))

    held = Delta(0, (), (TOKEN,))
    assert list(silent.chunks(held)) == []
    [chunk] = telling.chunks(held)
    assert [each["logprob"] for each in chunk["choices"][0]["logprobs"]["content"]] == [-0.5]


async def test_the_last_delta_sends_its_tokens_once() -> None:
    answer = ChatAnswer(HEAD, request_of(logprobs=True), await generated("x"))

    chunks = list(answer.chunks(Delta(0, ("a",), (TOKEN,), Finish("stop"))))
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert sum(len(each["content"]) for each in told if each) == 1
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "stop"]


async def test_calls_are_numbered_through_the_stream_as_in_the_whole_message() -> None:
    generation = await generated(CALL + CALL, tool_format="hermes")
    answer = ChatAnswer(HEAD, request_of(), generation)
    call = ToolCall("weather", "{}")
    told = [
        each
        for _ in range(2)
        for chunk in answer.chunks(Delta(0, (call,), ()))
        for each in chunk["choices"][0]["delta"]["tool_calls"]
    ]

    assert [each["index"] for each in told] == [0, 1]
    message = message_of(HEAD, 0, generation.choices[0])
    assert [each["id"] for each in told] == [each["id"] for each in message["tool_calls"]]
