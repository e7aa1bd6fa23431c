from __future__ import annotations

from chockstone.api.chat.generation import Delta, SampledText
from chockstone.api.chat.request_fields import RequestFields
from chockstone.api.openai.answer_head import AnswerHead
from chockstone.api.openai.completions.completion_answer import CompletionAnswer
from chockstone.api.openai.completions.completion_request import read_completion_request
from support.chat import generated

HEAD = AnswerHead("cmpl-1", "tiny", 0, None)


async def test_choices_of_all_prompts_are_numbered_through() -> None:
    request = read_completion_request(RequestFields({"model": "tiny", "prompt": ["a", "b"], "n": 2}))
    answer = CompletionAnswer(HEAD, request, [await generated("one", "two"), await generated("three", "four")]).whole()

    assert [choice["text"] for choice in answer["choices"]] == ["one", "two", "three", "four"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 6


async def test_tokens_without_text_are_sent_only_where_they_are_asked_for() -> None:
    held = Delta(0, (), (SampledText(1, b"a", -0.5),))
    for logprobs, number in ((None, 0), (0, 1)):
        asked = {"model": "tiny", "prompt": "a", "logprobs": logprobs}
        answer = CompletionAnswer(HEAD, read_completion_request(RequestFields(asked)), [await generated("x")])
        assert len(list(answer.chunks(held))) == number
