"""Response requests: the body of a request for a response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from chockstone.api.chat.orders import Conversation, GenerationParameters
from chockstone.api.chat.request_fields import RequestFields
from chockstone.api.openai.chat.chat_messages import read_tool_choice, read_tools
from chockstone.api.openai.responses.response_input import read_input
from chockstone.api.openai.sampling_fields import (
    read_format,
    read_labels,
    read_metadata,
    read_parameters,
    read_store,
    read_top_logprobs,
    refuse,
)

_LOGPROBS: Final = "message.output_text.logprobs"
_REASONING: Final = "reasoning.encrypted_content"  # clients ask for it always; there is none here


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest:
    model: str
    instructions: str | None
    conversation: Conversation
    parameters: GenerationParameters
    is_streamed: bool
    has_logprobs: bool
    metadata: Mapping[str, str]
    store: bool | None  # None: the request says nothing
    tool_choice: Any  # Any: plain JSON, as the client sent it
    text_format: Mapping[str, Any]  # Any: as above


def read_response_request(fields: RequestFields) -> ResponseRequest:
    """Raises BadParameter, which names the field."""
    model = fields.needed_text("model")
    instructions = fields.text("instructions", may_be_empty=True)
    messages = read_input(fields, instructions)
    offered = read_tools(fields, inner=None)
    has_logprobs = _read_include(fields)
    constraint = _read_text(fields)
    tool_choice = read_tool_choice(fields, offered.tools)
    if constraint is not None and offered.tools and tool_choice != "none":
        raise fields.refusal("text.format", "goes without tools, unless tool_choice is 'none'")
    parameters = read_parameters(
        fields,
        max_tokens=fields.integer("max_output_tokens", low=1),
        alternatives=read_top_logprobs(fields, has_logprobs=has_logprobs),
        constraint=constraint,
    )
    request = ResponseRequest(
        model=model,
        instructions=instructions,
        conversation=Conversation(
            messages=messages,
            tools=offered.tools,
            strict_tools=offered.strict,
            tool_choice=tool_choice,
            single_call=not fields.flag("parallel_tool_calls", default=True),
            options=fields.mapping("chat_template_kwargs") or {},
        ),
        parameters=parameters,
        is_streamed=fields.flag("stream"),
        has_logprobs=has_logprobs,
        metadata=read_metadata(fields),
        store=read_store(fields),
        tool_choice=fields.take("tool_choice") or "auto",
        text_format=(fields.mapping("text") or {}).get("format") or {"type": "text"},
    )
    read_labels(fields)
    refuse(fields, "conversation", "max_tool_calls", "previous_response_id", "prompt", "stream_options")
    refuse(fields, background=False, truncation="disabled")
    _read_reasoning(fields)
    fields.finish()
    return request


def _read_include(fields: RequestFields) -> bool:
    """Whether the answer is to have logprobs."""
    wanted = fields.items("include", most=16) or []
    if any(each not in (_LOGPROBS, _REASONING) for each in wanted):
        raise fields.refusal("include", f"can name {_LOGPROBS!r} only")
    return _LOGPROBS in wanted


def _read_reasoning(fields: RequestFields) -> None:
    """Clients ask always for a summary of the reasoning, which no answer here has. An effort would change answers."""
    reasoning = fields.inner("reasoning")
    if reasoning is not None:
        reasoning.text("summary")
        reasoning.finish()


def _read_text(fields: RequestFields) -> dict[str, Any] | None:  # Any: plain JSON
    """The constraint of the text; None: any text."""
    text = fields.inner("text")
    if text is None:
        return None
    constraint = read_format(text.inner("format"))
    text.refuse("verbosity", "is not supported by this server; leave it out", neutral=("medium",))
    text.finish()
    return constraint
