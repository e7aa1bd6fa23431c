"""Chat answers: a generation as a chat completion, and as the chunks of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from chockstone.api.chat.generation import Delta, GeneratedChoice, TextGeneration
from chockstone.api.chat.tool_calls import ToolCall
from chockstone.api.openai.answer_head import AnswerHead, usage_of
from chockstone.api.openai.chat.chat_request import ChatRequest
from chockstone.api.openai.logprobs import chat_logprobs
from chockstone.engine.conversations import KeptConversation

PlainJson = dict[str, Any]  # Any: plain JSON


class ChatAnswer:
    def __init__(self, head: AnswerHead, request: ChatRequest, generation: TextGeneration) -> None:
        self._head = head
        self._request = request
        self._generation = generation
        self._begun: set[int] = set()  # choices that had a chunk
        self._calls: Counter[int] = Counter()  # by choice

    def whole(self) -> PlainJson:
        """Of a generation that is finished."""
        choices = [self._choice(number, choice) for number, choice in enumerate(self._generation.choices)]
        answer = {**self._head.to_json("chat.completion"), "choices": choices, "usage": usage_of(self._generation)}
        if self._request.has_token_ids:
            answer["prompt_token_ids"] = self._generation.prompt_tokens
        return answer

    def chunks(self, delta: Delta) -> Iterator[PlainJson]:
        """What a client gets of a delta. Nothing, if nothing of it can be shown yet."""
        message: PlainJson = {}
        text = "".join(part for part in delta.parts if isinstance(part, str))
        calls = [part for part in delta.parts if isinstance(part, ToolCall)]
        has_tokens = bool(delta.tokens) and (self._request.has_logprobs or self._request.has_token_ids)
        if delta.choice not in self._begun:
            self._begun.add(delta.choice)
            message["role"] = "assistant"
            message["content"] = ""
        if text:
            message["content"] = text
        if calls:
            first = self._calls[delta.choice]
            self._calls[delta.choice] += len(calls)
            told = [call_json(self._head, delta.choice, first + place, call) for place, call in enumerate(calls)]
            message["tool_calls"] = [{"index": first + place, **call} for place, call in enumerate(told)]
        if message or has_tokens:
            yield self._chunk(delta, message)
        if delta.finish is not None:
            yield self._chunk(delta, {}, finish_reason=delta.finish.reason, has_tokens=not (message or has_tokens))

    def usage_chunk(self) -> PlainJson:
        head = self._head.to_json("chat.completion.chunk")
        return {**head, "choices": [], "usage": usage_of(self._generation)}

    def _chunk(
        self, delta: Delta, message: PlainJson, *, finish_reason: str | None = None, has_tokens: bool = True
    ) -> PlainJson:
        choice: PlainJson = {
            "index": delta.choice,
            "delta": message,
            "logprobs": chat_logprobs(delta.tokens) if self._request.has_logprobs and has_tokens else None,
            "finish_reason": finish_reason,
        }
        if self._request.has_token_ids and has_tokens:
            choice["token_ids"] = [each.token for each in delta.tokens]
        chunk = {**self._head.to_json("chat.completion.chunk"), "choices": [choice]}
        if self._request.has_token_ids and "role" in message:
            chunk["prompt_token_ids"] = self._generation.prompt_tokens
        return {**chunk, "usage": None} if self._request.has_usage else chunk

    def _choice(self, number: int, choice: GeneratedChoice) -> PlainJson:
        assert choice.finish is not None, "the generation is finished"
        found: PlainJson = {
            "index": number,
            "message": message_of(self._head, number, choice),
            "logprobs": chat_logprobs(choice.tokens) if self._request.has_logprobs else None,
            "finish_reason": choice.finish.reason,
        }
        if self._request.has_token_ids:
            found["token_ids"] = [each.token for each in choice.tokens]
        return found


def message_of(head: AnswerHead, number: int, choice: GeneratedChoice) -> PlainJson:
    """What the client got of the choice, in a stream too."""
    calls = [call_json(head, number, place, call) for place, call in enumerate(choice.calls)]
    text = choice.text
    message: PlainJson = {"role": "assistant", "content": text if text.strip() or not calls else None, "refusal": None}
    return {**message, "tool_calls": calls} if calls else message


def stored_completion(kept: KeptConversation) -> PlainJson:
    """A completion as it was answered, without its log-probabilities."""
    answer = kept.answer
    prompt, completion = len(answer.prompt_tokens), sum(len(choice.tokens) for choice in answer.choices)
    choices = [
        {
            "index": number,
            "message": dict(choice.message),
            "logprobs": None,
            "finish_reason": choice.finish_reason,
        }
        for number, choice in enumerate(answer.choices)
    ]
    return {
        **AnswerHead.of(kept).to_json("chat.completion"),
        "choices": choices,
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
        "metadata": dict(answer.metadata),
    }


def call_json(head: AnswerHead, choice: int, place: int, call: ToolCall) -> PlainJson:
    return {
        "id": head.call_id(choice, place),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
