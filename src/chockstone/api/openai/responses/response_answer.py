"""Response answers: a generation as the items of a response, and as the events of one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from chockstone.api.chat.generation import Delta, Finish, TextGeneration
from chockstone.api.chat.storing import plain_message
from chockstone.api.chat.tool_calls import ToolCall
from chockstone.api.openai.answer_head import AnswerHead
from chockstone.api.openai.logprobs import chat_logprobs
from chockstone.api.openai.responses.response_request import ResponseRequest
from chockstone.engine.conversations import KeptConversation
from chockstone.wire.failures import BadRequest, RequestError

PlainJson = dict[str, Any]  # Any: plain JSON


class ResponseAnswer:
    """Fed with the deltas in order. Each event is numbered, so every event that is made must be sent."""

    def __init__(self, head: AnswerHead, request: ResponseRequest, generation: TextGeneration) -> None:
        self._head = head
        self._request = request
        self._generation = generation
        self._output: list[PlainJson] = []
        self._open: PlainJson | None = None  # the message that is being written
        self._blank = ""  # text that is shown once more follows: models write newlines around calls
        self._logprobs: list[PlainJson] = []  # of tokens whose text was not sent yet
        self._calls = 0
        self._finish: Finish | None = None
        self._sequence = 0

    def whole(self) -> PlainJson:
        """Of a generation that is finished."""
        [choice] = self._generation.choices
        for _ in self.events(Delta(0, tuple(choice.parts), tuple(choice.tokens), choice.finish)):
            pass
        return self._response()

    def begin(self) -> Iterator[PlainJson]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response(status="in_progress"))

    def events(self, delta: Delta) -> Iterator[PlainJson]:
        if self._request.has_logprobs:
            self._logprobs += chat_logprobs(delta.tokens)["content"]
        for part in delta.parts:
            yield from self._call(part) if isinstance(part, ToolCall) else self._text(part)
        if delta.finish is not None:
            self._finish = delta.finish
            if not self._output and self._open is None:
                yield from self._begin_message()  # an empty answer is a message
            yield from self._close()

    def end(self) -> PlainJson:
        kind = "response.incomplete" if self._is_cut else "response.completed"
        return self._event(kind, response=self._response())

    def failed(self, error: RequestError) -> PlainJson:
        code = "invalid_prompt" if isinstance(error, BadRequest) else "server_error"
        response = {**self._response(status="failed"), "error": {"code": code, "message": str(error)}}
        return self._event("response.failed", response=response)

    @property
    def _is_cut(self) -> bool:
        return self._finish is not None and self._finish.reason == "length"

    def _text(self, text: str) -> Iterator[PlainJson]:
        text = self._blank + text
        self._blank = ""
        if self._open is None and not text.strip():
            self._blank = text
            return
        if self._open is None:
            yield from self._begin_message()
        assert self._open is not None, "it was begun"
        [content] = self._open["content"]
        logprobs, self._logprobs = self._logprobs, []
        content["text"] += text
        content["logprobs"] += logprobs
        yield self._event("response.output_text.delta", **self._place(), content_index=0, delta=text, logprobs=logprobs)

    def _begin_message(self) -> Iterator[PlainJson]:
        item_id = self._head.item_id("msg", len(self._output))
        message = {"id": item_id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        yield self._event("response.output_item.added", output_index=len(self._output), item=message)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._open = {**message, "content": [part]}
        yield self._event("response.content_part.added", **self._place(), content_index=0, part=dict(part))

    def _close(self) -> Iterator[PlainJson]:
        """The message that is open, if there is one, has ended."""
        if self._open is None:
            return
        [part] = self._open["content"]
        part["logprobs"] += self._logprobs
        self._logprobs = []
        done = {"content_index": 0, "text": part["text"], "logprobs": part["logprobs"]}
        yield self._event("response.output_text.done", **self._place(), **done)
        yield self._event("response.content_part.done", **self._place(), content_index=0, part=part)
        message = {**self._open, "status": "incomplete" if self._is_cut else "completed"}
        yield self._event("response.output_item.done", output_index=len(self._output), item=message)
        self._output.append(message)
        self._open = None

    def _call(self, call: ToolCall) -> Iterator[PlainJson]:
        yield from self._close()
        self._blank = ""
        index = len(self._output)
        item = _call_item(self._head, index, self._calls, call)
        self._calls += 1
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "status": "in_progress", "arguments": ""}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
        yield self._event("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments)
        yield self._event("response.output_item.done", output_index=index, item=item)
        self._output.append(item)

    def _place(self) -> PlainJson:
        assert self._open is not None, "a message is being written"
        return {"item_id": self._open["id"], "output_index": len(self._output)}

    def _event(self, kind: str, **values: Any) -> PlainJson:
        number, self._sequence = self._sequence, self._sequence + 1
        return {"type": kind, "sequence_number": number, **values}

    def _response(self, *, status: str | None = None) -> PlainJson:
        request, parameters = self._request, self._request.parameters
        ended = "incomplete" if self._is_cut else "completed"
        return {
            "id": self._head.answer_id,
            "object": "response",
            "created_at": self._head.created_at,
            "completed_at": int(time.time()) if (status or ended) == "completed" else None,
            "status": status or ended,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if self._is_cut else None,
            "instructions": request.instructions,
            "max_output_tokens": parameters.max_tokens,
            "metadata": dict(request.metadata),
            "model": self._head.model,
            "output": list(self._output),
            "parallel_tool_calls": not request.conversation.single_call,
            "previous_response_id": None,
            "store": bool(request.store),
            "temperature": parameters.temperature,
            "text": {"format": request.text_format},
            "tool_choice": request.tool_choice,
            "tools": [self._tool(tool["function"]) for tool in request.conversation.tools],
            "top_logprobs": parameters.alternatives,
            "top_p": parameters.top_p,
            "truncation": "disabled",
            "usage": None if self._finish is None else self._usage(),
        }

    def _usage(self) -> PlainJson:
        generation = self._generation
        cached = generation.cached_tokens or 0
        return _usage(len(generation.prompt_tokens), generation.completion_tokens, cached=cached)

    def _tool(self, function: PlainJson) -> PlainJson:
        is_strict = function["name"] in self._request.conversation.strict_tools
        return {"type": "function", **function, "strict": is_strict}


def stored_message(head: AnswerHead, request: ResponseRequest, generation: TextGeneration, number: int) -> PlainJson:
    """What is stored of a finished generation: the message, and the response as the client got it, without its
    log-probabilities.
    """
    answer = ResponseAnswer(head, replace(request, has_logprobs=False), generation)
    return {**plain_message(generation, number), "response": answer.whole()}


def stored_response(kept: KeptConversation) -> PlainJson:
    """The response as it was answered, without its log-probabilities."""
    [choice] = kept.answer.choices
    response: PlainJson | None = choice.message.get("response")
    return _rebuilt(kept) if response is None else response


def _rebuilt(kept: KeptConversation) -> PlainJson:
    """Of a conversation that was stored without the response itself, from its text and its calls.

    Its instructions, format and choice of tools were not stored: they are those of a request without any.
    """
    head, answer = AnswerHead.of(kept), kept.answer
    [choice] = answer.choices
    is_cut = choice.finish_reason == "length"
    status = "incomplete" if is_cut else "completed"
    output: list[PlainJson] = []
    text, calls = choice.message.get("content") or "", choice.message.get("tool_calls", ())
    if text.strip() or not calls:
        part: PlainJson = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        message = {"type": "message", "role": "assistant", "status": status, "content": [part]}
        output.append({"id": head.item_id("msg", 0), **message})
    for place, call in enumerate(calls):
        output.append(_call_item(head, len(output), place, ToolCall(call["name"], call["arguments"])))
    prompt, completion = len(answer.prompt_tokens), len(choice.tokens)
    return {
        "id": head.answer_id,
        "object": "response",
        "created_at": head.created_at,
        "completed_at": None if is_cut else int(kept.kept_at.timestamp()),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": None,
        "max_output_tokens": answer.sampling.get("max_tokens"),
        "metadata": dict(answer.metadata),
        "model": head.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": True,
        "temperature": answer.sampling.get("temperature"),
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [{"type": "function", **tool["function"], "strict": False} for tool in answer.tools],
        "top_logprobs": 0,
        "top_p": answer.sampling.get("top_p"),
        "truncation": "disabled",
        "usage": _usage(prompt, completion, cached=0),
    }


def _call_item(head: AnswerHead, index: int, place: int, call: ToolCall) -> PlainJson:
    """``index``: of the item among all; ``place``: of the call among the calls."""
    return {
        "id": head.item_id("fc", index),
        "type": "function_call",
        "status": "completed",
        "call_id": head.call_id(0, place),
        "name": call.name,
        "arguments": call.arguments,
    }


def _usage(prompt: int, completion: int, *, cached: int) -> PlainJson:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }
