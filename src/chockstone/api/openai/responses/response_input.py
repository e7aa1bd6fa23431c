"""Response inputs: the input of a response, as chat templates read it."""

from __future__ import annotations

from typing import Any, Final

from chockstone.api.chat.request_fields import RequestFields
from chockstone.api.openai.chat.chat_messages import (
    MAX_MESSAGES,
    call_as_templates_read_it,
    read_content,
)

PlainJson = dict[str, Any]  # Any: plain JSON
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def read_input(fields: RequestFields, instructions: str | None) -> list[PlainJson]:
    """Messages. Calls of one turn become one message, as models wrote them."""
    messages: list[PlainJson] = [] if instructions is None else [{"role": "system", "content": instructions}]
    value = fields.needed("input")
    if isinstance(value, str):
        return [*messages, {"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise fields.refusal("input", "must be a text or a list of items, and not empty")
    if len(value) > MAX_MESSAGES:
        raise fields.refusal("input", f"has {len(value)} entries; at most {MAX_MESSAGES} are taken")
    for place, item in enumerate(value):
        _add_item(messages, RequestFields(item, f"input[{place}]"))
    return messages


def _add_item(messages: list[PlainJson], item: RequestFields) -> None:
    kind = item.take("type")
    if kind in (None, "message"):
        messages.append(_message(item))
    elif kind == "function_call":
        call = _call(item)
        if messages and messages[-1]["role"] == "assistant":
            messages[-1].setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    elif kind == "function_call_output":
        call_id, output = item.needed_text("call_id"), read_content(item, "output")
        messages.append({"role": "tool", "tool_call_id": call_id, "content": output or ""})
    else:
        raise item.refusal("type", f"is {str(kind)[:80]!r}, which is not supported by this server")
    item.text("id")
    item.text("status")
    item.finish()


def _message(item: RequestFields) -> PlainJson:
    role = item.word("role", *_ROLES)
    if role is None:
        raise item.refusal("role", "is missing")
    content = read_content(item, "content")
    if content is None:
        raise item.refusal("content", "is missing")
    return {"role": _ROLES[role], "content": content}


def _call(item: RequestFields) -> PlainJson:
    arguments = item.text("arguments", may_be_empty=True)
    return call_as_templates_read_it(item.needed_text("call_id"), item.needed_text("name"), arguments or "")
