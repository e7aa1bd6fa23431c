"""Chat messages: messages and tools of a chat completion, as chat templates read them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from chockstone.api.chat.orders import NamedTool, ToolChoice
from chockstone.api.chat.request_fields import RequestFields
from chockstone.wire.failures import BadParameter

PlainJson = dict[str, Any]  # Any: plain JSON
MAX_MESSAGES: Final = 200_000
MAX_TOOLS: Final = 512
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
_TEXT_PARTS: Final = ("text", "input_text", "output_text", "refusal")


@dataclass(frozen=True, slots=True)
class OfferedTools:
    tools: list[PlainJson]
    strict: frozenset[str]  # names of those whose arguments must match their schema


def read_messages(fields: RequestFields) -> list[PlainJson]:
    found = fields.items("messages", most=MAX_MESSAGES)
    if not found:
        raise fields.refusal("messages", "is missing; send at least one message")
    return [_read_message(RequestFields(value, f"messages[{place}]")) for place, value in enumerate(found)]


def _read_message(fields: RequestFields) -> PlainJson:
    role = fields.word("role", *_ROLES)
    if role is None:
        raise fields.refusal("role", "is missing")
    message: PlainJson = {"role": _ROLES[role]}
    if (name := fields.text("name")) is not None:
        message["name"] = name
    if role == "tool":
        message["tool_call_id"] = fields.needed_text("tool_call_id")
    calls = _read_calls(fields) if role == "assistant" else []
    content = read_content(fields, "content")
    if role == "assistant":
        content = _content_of_assistant(fields, content)
    if content is None and not calls:
        raise fields.refusal("content", "is missing")
    message["content"] = content or ""
    fields.mapping("provider_specific_fields")  # LiteLLM writes it into the messages that it gives to programs
    if calls:
        message["tool_calls"] = calls
    fields.finish()
    return message


def _content_of_assistant(fields: RequestFields, content: str | None) -> str | None:
    """A refusal takes the place of the content."""
    fields.refuse("annotations", "is not supported; leave it out", neutral=([],))
    refusal = fields.text("refusal", may_be_empty=True)
    if content is not None and refusal is not None:
        raise fields.refusal("refusal", "goes without content")
    return refusal if content is None else content


def read_content(fields: RequestFields, field: str) -> str | None:
    """A text, or a list of parts that are texts."""
    value = fields.take(field)
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.refusal(field, "must be a text or a list of parts")
    texts: list[str] = []
    for place, part in enumerate(value):
        part_fields = RequestFields(part, f"{fields.name_of(field)}[{place}]")
        kind = part_fields.take("type")
        if kind not in _TEXT_PARTS:
            raise part_fields.refusal("type", f"is {str(kind)[:80]!r}: the models of this server read text only")
        texts.append(part_fields.needed_text("refusal" if kind == "refusal" else "text", may_be_empty=True))
        part_fields.refuse("annotations", "is not supported; leave it out", neutral=([],))
        part_fields.refuse("logprobs", "is not supported; leave it out", neutral=([],))
        part_fields.finish()
    return "".join(texts)


def _read_calls(fields: RequestFields) -> list[PlainJson]:
    calls: list[PlainJson] = []
    for place, value in enumerate(fields.items("tool_calls", most=MAX_TOOLS) or []):
        call = RequestFields(value, fields.name_of(f"tool_calls[{place}]"))
        call_id = call.needed_text("id")
        call.word("type", "function")
        function = call.inner("function")
        if function is None:
            raise call.refusal("function", "is missing")
        name, arguments = function.needed_text("name"), function.text("arguments", may_be_empty=True)
        function.finish()
        call.integer("index")  # of a call that came in a stream
        call.finish()
        calls.append(call_as_templates_read_it(call_id, name, arguments or ""))
    return calls


def call_as_templates_read_it(call_id: str, name: str, arguments: str) -> PlainJson:
    """Arguments that are JSON of an object become the object; other text stays as the model wrote it."""
    try:
        orjson.loads(arguments or "{}")  # knows no NaN, and no half characters, which no tokenizer takes
        values = json.loads(arguments or "{}")  # keeps integers that are longer than 64 bits
    except (ValueError, RecursionError):
        values = arguments
    function = {"name": name, "arguments": values if isinstance(values, dict) else arguments}
    return {"id": call_id, "type": "function", "function": function}


def read_tools(fields: RequestFields, *, inner: str | None) -> OfferedTools:
    """``inner``: the field of a tool that has the function; None: the tool is the function, as those of a response."""
    tools: list[PlainJson] = []
    strict: set[str] = set()
    for place, value in enumerate(fields.items("tools", most=MAX_TOOLS) or []):
        tool = RequestFields(value, f"tools[{place}]")
        if tool.take("type") != "function":
            raise tool.refusal("type", "must be 'function'; this server has no tools of its own")
        function = tool if inner is None else tool.inner(inner)
        if function is None:
            raise tool.refusal(str(inner), "is missing")
        is_strict = function.flag("strict")
        tools.append(_read_function(function))
        tool.finish()
        if is_strict:
            strict.add(tools[-1]["function"]["name"])
    _refuse_twice(tools)
    return OfferedTools(tools, frozenset(strict))


def _read_function(fields: RequestFields) -> PlainJson:
    """In the shape of a tool of a chat completion, as chat templates read it."""
    name = fields.needed_text("name")
    if not _TOOL_NAME.fullmatch(name):
        raise fields.refusal("name", "must have 1 to 128 characters out of A-Z a-z 0-9 _ . -")
    function: PlainJson = {"name": name}
    if (description := fields.text("description", may_be_empty=True)) is not None:
        function["description"] = description
    function["parameters"] = fields.mapping("parameters") or {"type": "object", "properties": {}}
    fields.finish()
    return {"type": "function", "function": function}


def _refuse_twice(tools: Sequence[Mapping[str, Any]]) -> None:  # Any: plain JSON
    known: set[str] = set()
    for place, tool in enumerate(tools):
        name = tool["function"]["name"]
        if name in known:
            raise BadParameter(f"tools has two functions of the name {name!r}", param=f"tools[{place}].function.name")
        known.add(name)


def read_tool_choice(fields: RequestFields, tools: Sequence[Mapping[str, Any]]) -> ToolChoice:  # Any: plain JSON
    """``{"type": "function", "function": {"name": …}}`` or, of a response, ``{"type": "function", "name": …}``."""
    value = fields.take("tool_choice")
    if value is None:
        return "auto"
    if not tools and value not in ("none", "auto"):
        raise fields.refusal("tool_choice", "needs tools")
    if value in ("auto", "none", "required"):
        choice: ToolChoice = value
        return choice
    if not isinstance(value, dict):
        raise fields.refusal("tool_choice", "must be 'auto', 'none', 'required' or name a function")
    chosen = RequestFields(value, "tool_choice")
    chosen.word("type", "function")
    inner = chosen.inner("function")
    name = (chosen if inner is None else inner).needed_text("name")
    chosen.finish()
    if inner is not None:
        inner.finish()
    if all(tool["function"]["name"] != name for tool in tools):
        raise fields.refusal("tool_choice", f"names {name[:128]!r}, which is none of the tools")
    return NamedTool(name)
