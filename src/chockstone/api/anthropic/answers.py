"""Answers: what a model writes as content blocks, whole or as events of a stream.

Blank text around calls of tools is left out: the chat template writes it again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from chockstone.api.anthropic.message_request import MessageRequest
from chockstone.api.chat.generation import Delta, Finish, TextGeneration
from chockstone.api.chat.tool_calls import ToolCall
from chockstone.engine.conversations.answers import new_conversation_id

Json = dict[str, Any]  # Any: plain JSON
PING: Final[Json] = {"type": "ping"}


@dataclass(slots=True)
class AnswerBlocks:
    """The blocks of one answer, in order. Each call returns the events that tell what came."""

    blocks: list[Json] = field(default_factory=list)
    _is_open: bool = False  # the last block is text that may go on
    _blank: str = ""  # text that is left out if a call follows

    def add(self, parts: Iterable[str | ToolCall]) -> Iterator[Json]:
        for part in parts:
            if isinstance(part, str):
                yield from self._add_text(part)
            elif (call := tool_use(part)) is None:
                yield from self._add_text(f'{{"name": {json.dumps(part.name)}, "arguments": {part.arguments}}}')
            else:
                yield from self._add_call(call, part.arguments)

    def finish(self) -> Iterator[Json]:
        """An answer has at least one block."""
        if not self.blocks:
            yield from self._open_text()
        if self._is_open and self._blank:
            yield self._extend(self._blank)
        yield from self._close()

    @property
    def has_calls(self) -> bool:
        return any(block["type"] == "tool_use" for block in self.blocks)

    def _add_text(self, text: str) -> Iterator[Json]:
        text = self._blank + text
        kept = text.rstrip()
        if not kept:
            self._blank = text
            return
        self._blank = text[len(kept) :]
        if not self._is_open:
            kept = kept if not self.blocks else kept.lstrip()
            yield from self._open_text()
        yield self._extend(kept)

    def _add_call(self, call: Json, arguments: str) -> Iterator[Json]:
        self._blank = ""
        yield from self._close()
        index = len(self.blocks)
        self.blocks.append(call)
        yield {
            "type": "content_block_start",
            "index": index,
            "content_block": {**call, "input": {}},
        }
        delta = {"type": "input_json_delta", "partial_json": arguments}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}

    def _open_text(self) -> Iterator[Json]:
        self._is_open = True
        self.blocks.append({"type": "text", "text": ""})
        yield {
            "type": "content_block_start",
            "index": len(self.blocks) - 1,
            "content_block": {"type": "text", "text": ""},
        }

    def _extend(self, text: str) -> Json:
        self.blocks[-1]["text"] += text
        delta = {"type": "text_delta", "text": text}
        return {
            "type": "content_block_delta",
            "index": len(self.blocks) - 1,
            "delta": delta,
        }

    def _close(self) -> Iterator[Json]:
        if self._is_open:
            self._is_open = False
            yield {"type": "content_block_stop", "index": len(self.blocks) - 1}


def tool_use(call: ToolCall) -> Json | None:
    """None: the model wrote arguments that are no object."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    if not isinstance(arguments, dict):
        return None
    return {
        "type": "tool_use",
        "id": f"toolu_{secrets.token_hex(12)}",
        "name": call.name,
        "input": arguments,
    }


class MessageAnswer:
    """One message, while it is written."""

    def __init__(self, asked: MessageRequest, generation: TextGeneration, *, message_id: str | None = None) -> None:
        """``message_id`` None: a new one."""
        self._asked = asked
        self._generation = generation
        self._message_id = message_id or new_conversation_id("msg_", datetime.now(UTC))
        self._blocks = AnswerBlocks()

    def beginning(self) -> Json:
        """The first event."""
        return {
            "type": "message_start",
            "message": self._message([], {"stop_reason": None, "stop_sequence": None}),
        }

    def add(self, delta: Delta) -> list[Json]:
        return list(self._blocks.add(delta.parts))

    def finish(self) -> list[Json]:
        """The last events. Expects the generation to have ended."""
        last = [*self._blocks.finish()]
        return [
            *last,
            {"type": "message_delta", "delta": self._ending(), "usage": self._usage()},
            {"type": "message_stop"},
        ]

    def whole(self) -> Json:
        """After ``finish``."""
        return self._message(self._blocks.blocks, self._ending())

    def _message(self, content: list[Json], ending: Json) -> Json:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "model": self._asked.model,
            "content": content,
            **ending,
            "usage": self._usage(),
        }

    def _ending(self) -> Json:
        finish = self._generation.choices[0].finish
        assert finish is not None, "the generation has ended"
        is_cut_by_context = self._generation.completion_tokens < (self._asked.parameters.max_tokens or 0)
        return ending_of(
            finish,
            has_calls=self._blocks.has_calls,
            is_cut_by_context=is_cut_by_context,
        )

    def _usage(self) -> Json:
        """``input_tokens`` are those that were computed; at the beginning it is not known which were not."""
        cached = self._generation.cached_tokens or 0
        return {
            "input_tokens": len(self._generation.prompt_tokens) - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self._generation.completion_tokens,
        }


def ending_of(finish: Finish, *, has_calls: bool, is_cut_by_context: bool) -> Json:
    """``is_cut_by_context``: there was no room for as many tokens as were asked for."""
    reason, stop_string = "end_turn", None
    if finish.reason == "length":
        reason = "model_context_window_exceeded" if is_cut_by_context else "max_tokens"
    elif has_calls:
        reason = "tool_use"
    elif finish.stop_string is not None:
        reason, stop_string = "stop_sequence", finish.stop_string
    return {"stop_reason": reason, "stop_sequence": stop_string}


def encode_message(message: Json) -> bytes:
    """Arguments of calls may have integers of more than 64 bits, which Python writes, and orjson refuses."""
    try:
        return orjson.dumps(message)
    except TypeError:
        return json.dumps(message, ensure_ascii=False).encode()


def server_sent(event: Json) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (str(event["type"]).encode(), orjson.dumps(event))
