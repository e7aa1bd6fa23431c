"""Message requests: the body of ``POST messages`` and of ``POST messages/count_tokens``.

Fields that change nothing here are accepted: hints for caches, priorities and effort. Every other field that is not
supported is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from chockstone.api.anthropic.content import read_messages, read_system, read_tools
from chockstone.api.chat.orders import (
    Conversation,
    GenerationParameters,
    NamedTool,
    ToolChoice,
)
from chockstone.api.chat.request_fields import RequestFields
from chockstone.wire.codecs.sample_request import MAX_INT32, MAX_STOP_CHARACTERS, MAX_STOPS

Constraint = dict[str, Any]  # Any: plain JSON, as sample requests have it
_NO_EFFECT: Final = ("cache_control", "service_tier", "diagnostics", "user_profile_id")
_REFUSED: Final = {
    "container": "is not supported: this server runs no code for a model",
    "mcp_servers": "is not supported: this server connects to no other servers",
    "inference_geo": "is not supported: this server runs where it runs",
}


@dataclass(frozen=True, slots=True)
class MessageRequest:
    model: str
    conversation: Conversation
    parameters: GenerationParameters
    is_stream: bool = False
    metadata: Any = None  # Any: plain JSON, as it was sent


def read_message_request(fields: RequestFields) -> MessageRequest:
    """Raises BadParameter for a field that is wrong or not supported."""
    model, conversation, constraint = _read_prompt(fields)
    if fields.take("max_tokens") is None:
        raise fields.refusal("max_tokens", "is missing")
    parameters = GenerationParameters(
        max_tokens=fields.integer("max_tokens", low=1),
        temperature=_or(fields.number("temperature", low=0.0, high=2.0), 1.0),
        top_p=_read_top_p(fields),
        top_k=fields.integer("top_k", low=0, high=MAX_INT32) or -1,
        seed=fields.integer("seed", low=0),
        stop=_read_stops(fields),
        constraint=constraint,
    )
    metadata, is_stream = fields.mapping("metadata"), fields.flag("stream")
    fields.refuse("speed", "is supported with the value 'standard' only", neutral=("standard",))
    fields.finish()
    return MessageRequest(model, conversation, parameters, is_stream, metadata)


def read_count_request(fields: RequestFields) -> MessageRequest:
    """Parameters of sampling are not looked at: they change no prompt."""
    model, conversation, _ = _read_prompt(fields)
    for name in (
        "max_tokens",
        "metadata",
        "speed",
        "stop_sequences",
        "stream",
        "temperature",
        "top_k",
        "top_p",
    ):
        fields.take(name)
    fields.finish()
    return MessageRequest(model, conversation, GenerationParameters())


def _read_prompt(fields: RequestFields) -> tuple[str, Conversation, Constraint | None]:
    model = fields.needed_text("model")
    for name in _NO_EFFECT:
        fields.take(name)
    for name, why in _REFUSED.items():
        fields.refuse(name, why, neutral=([],))
    constraint = _read_format(fields)
    _check_context_management(fields)
    options = _read_thinking(fields)
    system = read_system(fields)
    messages, begin = read_messages(fields)
    tools, strict = read_tools(fields)
    choice, is_single = _read_tool_choice(fields, {tool["function"]["name"] for tool in tools})
    conversation = Conversation(
        messages=[*system, *messages],
        tools=tools,
        strict_tools=strict,
        tool_choice=choice,
        single_call=is_single,
        options=options,
        begin=begin,
    )
    if constraint is not None and conversation.offered_tools:
        raise fields.refusal("output_config", "has a format, which goes without tools, unless tool_choice is 'none'")
    if begin and (constraint is not None or conversation.must_call):
        raise fields.refusal(
            "messages", "ends with a message of the assistant, which goes without a format and a forced tool_choice"
        )
    return model, conversation, constraint


def _read_thinking(
    fields: RequestFields,
) -> dict[str, Any]:  # Any: variables of a template
    """``disabled`` reaches templates that know it; a model that decides by itself may write as it likes."""
    thinking = fields.inner("thinking")
    if thinking is None:
        return {}
    kind = thinking.text("type")
    if kind not in ("disabled", "adaptive"):
        raise thinking.refusal(
            "type",
            f"is {kind!r:.100}: a budget for thinking is not supported; leave out thinking",
        )
    thinking.take("display")
    thinking.finish()
    return {"enable_thinking": False} if kind == "disabled" else {}


def _read_format(fields: RequestFields) -> Constraint | None:
    """The constraint of ``output_config.format``, or of ``output_format``, its name in older SDKs; None: any text."""
    config, wanted = fields.inner("output_config"), fields.inner("output_format")
    if config is not None:
        config.word("effort", "low", "medium", "high", "xhigh", "max")  # changes nothing here
        inner = config.inner("format")
        config.finish()
        if inner is not None and wanted is not None:
            raise fields.refusal("output_format", "is output_config.format under its old name; send one of them")
        wanted = wanted if inner is None else inner
    if wanted is None:
        return None
    if wanted.word("type", "json_schema") is None:
        raise wanted.refusal("type", "is missing")
    wanted.needed("schema")
    schema = wanted.mapping("schema")
    wanted.finish()
    return {"json_schema": schema}


def _check_context_management(fields: RequestFields) -> None:
    """Clients ask without reason to drop old thinking, of which there is none."""
    management = fields.inner("context_management")
    if management is None:
        return
    for place, value in enumerate(management.items("edits", most=100) or ()):
        edit = RequestFields(value, management.name_of(f"edits[{place}]"))
        kind = edit.needed_text("type")
        if not kind.startswith("clear_thinking_"):
            raise edit.refusal(
                "type",
                f"is {kind[:100]!r}: this server edits no messages; edit them in the client",
            )
    management.finish()


def _read_tool_choice(fields: RequestFields, tools: set[str]) -> tuple[ToolChoice, bool]:
    """The choice, and whether the answer ends with its first call."""
    choice = fields.inner("tool_choice")
    if choice is None:
        return "auto", False
    kind = choice.word("type", "auto", "any", "tool", "none")
    if kind is None:
        raise choice.refusal("type", "is missing")
    is_single = choice.flag("disable_parallel_tool_use")
    name = choice.needed_text("name") if kind == "tool" else None
    choice.finish()
    if kind in ("any", "tool") and not tools:
        raise choice.refusal("type", f"is {kind!r}, but there are no tools")
    if name is not None and name not in tools:
        raise choice.refusal("name", f"is {name[:300]!r}, which is none of the tools")
    if kind == "any":
        return "required", is_single
    if name is not None:
        return NamedTool(name), is_single
    return ("none" if kind == "none" else "auto"), is_single


def _read_stops(fields: RequestFields) -> tuple[str, ...]:
    stops = fields.items("stop_sequences", most=MAX_STOPS) or []
    for place, stop in enumerate(stops):
        if not isinstance(stop, str) or not stop:
            raise fields.refusal(f"stop_sequences[{place}]", "must be a string that is not empty")
        if len(stop) > MAX_STOP_CHARACTERS:
            raise fields.refusal(f"stop_sequences[{place}]", f"has more than {MAX_STOP_CHARACTERS} characters")
    return tuple(stops)


def _read_top_p(fields: RequestFields) -> float:
    top_p = _or(fields.number("top_p", low=0.0, high=1.0), 1.0)
    if top_p == 0:
        raise fields.refusal("top_p", "must be above 0; 1 turns it off")
    return top_p


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
