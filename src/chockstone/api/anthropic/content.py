"""Content: messages of the Messages API as chat templates read them.

Consecutive messages of one role are one turn, as with Anthropic. Blocks of a user's or the system's text are joined
by a line feed. Blocks of an assistant's text are joined by nothing, because the model wrote them so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from chockstone.api.chat.request_fields import RequestFields
from chockstone.wire.failures import BadParameter

Message = dict[str, Any]  # Any: plain JSON, as chat templates read it

MOST_MESSAGES: Final = 10_000
MOST_BLOCKS: Final = 10_000  # of one message
_TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_CALL_ID: Final = re.compile(r"[a-zA-Z0-9_.:-]{1,256}")
_ERROR_MARK: Final = "Error: "  # before the content of a failed tool's result, which templates do not tell apart


def read_system(fields: RequestFields) -> list[Message]:
    """The system prompt as a message; none if there is none."""
    value = fields.take("system")
    text = "" if value is None else "\n".join(_texts(value, fields.name_of("system")))
    return [{"role": "system", "content": text}] if text else []


def read_messages(fields: RequestFields) -> tuple[list[Message], str]:
    """The messages, and the beginning of the answer: the text of a last message of the assistant."""
    fields.needed("messages")
    messages = fields.items("messages", most=MOST_MESSAGES)
    if not messages:
        raise fields.refusal("messages", "is empty; send at least one message of the user")
    turns = _Turns()
    for place, value in enumerate(messages):
        each = RequestFields(value, f"messages[{place}]")
        role = each.word("role", "user", "assistant", "system")
        if role is None:
            raise each.refusal("role", "is missing")
        content = each.needed("content")
        each.finish()
        turns.add(role, content, each.name_of("content"))
    return turns.finish()


class _Turns:
    def __init__(self) -> None:
        self._done: list[Message] = []
        self._pieces: list[str] = []  # of the text of the last one; joined once, as there may be thousands
        self._called: dict[str, str] = {}  # names of tools, by the id of their call
        self._open: dict[str, None] = {}  # ids of calls of the last turn of the assistant without a result

    def add(self, role: str, content: object, name: str) -> None:
        match role:
            case "assistant":
                self._add_assistant(content, name)
            case "system":
                self._add_text("system", "\n".join(_texts(content, name)))
            case _:
                for block in _blocks(content, name):
                    self._add_user(block)

    def finish(self) -> tuple[list[Message], str]:
        self._require_results("messages")
        self._join()
        if all(message["role"] == "assistant" for message in self._done):
            raise BadParameter("messages has nothing that the user wrote; send at least one block", param="messages")
        if self._done[-1]["role"] != "assistant":
            return self._done, ""
        return self._done[:-1], self._done[-1]["content"]

    def _add_assistant(self, content: object, name: str) -> None:
        if not self._done or self._done[-1]["role"] != "assistant":
            self._require_results(name)
            self._begin("assistant")
        turn = self._done[-1]
        for block in _blocks(content, name):
            if block.take("type") == "tool_use":
                turn.setdefault("tool_calls", []).append(self._call(block))
            else:
                self._pieces.append(_text(block))

    def _call(self, block: RequestFields) -> Message:
        call_id, tool = _matching(block, "id", _CALL_ID), _matching(block, "name", _TOOL_NAME)
        arguments = block.mapping("input")
        if arguments is None:
            raise block.refusal("input", "is missing")
        if call_id in self._called:
            raise block.refusal("id", f"is {call_id!r}, which another tool_use has")
        block.take("cache_control")
        block.refuse("caller", "is supported with the type 'direct' only", neutral=({"type": "direct"},))
        block.finish()
        self._called[call_id] = tool
        self._open[call_id] = None
        return {"id": call_id, "type": "function", "function": {"name": tool, "arguments": arguments}}

    def _add_user(self, block: RequestFields) -> None:
        if block.take("type") == "tool_result":
            self._add_result(block)
        else:
            self._add_text("user", _text(block))

    def _add_result(self, block: RequestFields) -> None:
        call_id = block.needed_text("tool_use_id")
        if call_id not in self._open:
            raise block.refusal(
                "tool_use_id", f"is {call_id[:300]!r}, which is no tool_use of the message before without a result"
            )
        del self._open[call_id]
        value = block.take("content")
        text = "" if value is None else "\n".join(_texts(value, block.name_of("content")))
        text = _ERROR_MARK + text if block.flag("is_error") else text
        block.take("cache_control")
        block.finish()
        self._begin("tool", tool_call_id=call_id, name=self._called[call_id])
        self._pieces.append(text)

    def _require_results(self, name: str) -> None:
        if self._open:
            missing = ", ".join(repr(call_id) for call_id in list(self._open)[:5])
            raise BadParameter(
                f"{name}: tool_use {missing} has no tool_result; the message after a tool_use has its result",
                param=name,
            )

    def _add_text(self, role: str, text: str) -> None:
        if self._done and self._done[-1]["role"] == role:
            self._pieces += ("\n", text)
        else:
            self._begin(role)
            self._pieces.append(text)

    def _begin(self, role: str, **facts: str) -> None:
        self._join()
        self._done.append({"role": role, **facts, "content": ""})

    def _join(self) -> None:
        """The last message is complete."""
        if self._done:
            self._done[-1]["content"] = "".join(self._pieces)
        self._pieces = []


def read_tools(fields: RequestFields) -> tuple[list[Message], frozenset[str]]:
    """As chat templates read them, and the names of those that are strict."""
    tools: dict[str, Message] = {}
    strict: set[str] = set()
    for place, value in enumerate(fields.items("tools", most=MOST_BLOCKS) or ()):
        each = RequestFields(value, fields.name_of(f"tools[{place}]"))
        kind = each.text("type")
        if kind not in (None, "custom"):
            raise each.refusal(
                "type",
                f"is {kind[:100]!r}: this server runs no tools of its own; describe yours as 'custom'",
            )
        name = _matching(each, "name", _TOOL_NAME)
        if name in tools:
            raise each.refusal("name", f"is {name!r}, which another tool has")
        schema = each.mapping("input_schema")
        if schema is None:
            raise each.refusal("input_schema", "is missing")
        function = {
            "name": name,
            "description": each.text("description", may_be_empty=True) or "",
            "parameters": schema,
        }
        _ignore(each, "cache_control", "eager_input_streaming")
        if each.flag("strict"):
            strict.add(name)
        each.refuse("defer_loading", "is not supported here", neutral=(False,))
        each.refuse(
            "allowed_callers",
            "is supported with ['direct'] only",
            neutral=(["direct"],),
        )
        each.refuse(
            "input_examples",
            "is not supported here; put examples into description",
            neutral=([],),
        )
        each.finish()
        tools[name] = {"type": "function", "function": function}
    return list(tools.values()), frozenset(strict)


def _blocks(content: object, name: str) -> Iterator[RequestFields]:
    if isinstance(content, str):
        yield RequestFields({"type": "text", "text": content}, name)
        return
    if not isinstance(content, list):
        raise BadParameter(f"{name} must be a string or a list of blocks", param=name)
    if len(content) > MOST_BLOCKS:
        raise BadParameter(
            f"{name} has {len(content)} blocks; at most {MOST_BLOCKS} are taken",
            param=name,
        )
    for place, block in enumerate(content):
        yield RequestFields(block, f"{name}[{place}]")


def _texts(content: object, name: str) -> list[str]:
    """Of content that may have text only."""
    return [_text(block) for block in _blocks(content, name)]


def _text(block: RequestFields) -> str:
    kind = block.text("type")
    if kind != "text":
        shown = "is missing" if kind is None else f"is {kind[:100]!r}, which is not supported here"
        raise block.refusal("type", f"{shown}; send text")
    text = block.needed_text("text", may_be_empty=True)
    block.take("cache_control")
    block.refuse("citations", "is not supported here", neutral=([], {"enabled": False}))
    block.finish()
    return text


def _ignore(fields: RequestFields, *names: str) -> None:
    for name in names:
        fields.take(name)


def _matching(fields: RequestFields, field: str, pattern: re.Pattern[str]) -> str:
    text = fields.needed_text(field)
    if pattern.fullmatch(text) is None:
        raise fields.refusal(field, f"is {text[:100]!r}, which must match {pattern.pattern}")
    return text
