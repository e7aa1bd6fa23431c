"""Chat requests: the body of a request for a chat completion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chockstone.api.chat.orders import Conversation, GenerationParameters
from chockstone.api.chat.request_fields import RequestFields
from chockstone.api.openai.chat.chat_messages import read_messages, read_tool_choice, read_tools
from chockstone.api.openai.sampling_fields import (
    read_choices,
    read_format,
    read_labels,
    read_metadata,
    read_parameters,
    read_store,
    read_stream,
    read_top_logprobs,
    refuse,
    refuse_penalties,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    model: str
    conversation: Conversation
    parameters: GenerationParameters
    is_streamed: bool
    has_usage: bool  # at the end of a stream
    has_logprobs: bool
    has_token_ids: bool
    metadata: Mapping[str, str]
    store: bool | None  # None: the request says nothing


def read_chat_request(fields: RequestFields) -> ChatRequest:
    """Raises BadParameter, which names the field."""
    model = fields.needed_text("model")
    messages = read_messages(fields)
    offered = read_tools(fields, inner="function")
    is_streamed, has_usage = read_stream(fields)
    has_logprobs = fields.flag("logprobs")
    constraint = read_format(fields.inner("response_format"), inner="json_schema")
    tool_choice = read_tool_choice(fields, offered.tools)
    if constraint is not None and offered.tools and tool_choice != "none":
        raise fields.refusal("response_format", "goes without tools, unless tool_choice is 'none'")
    parameters = read_parameters(
        fields,
        max_tokens=_read_max_tokens(fields),
        choices=read_choices(fields),
        alternatives=read_top_logprobs(fields, has_logprobs=has_logprobs),
        constraint=constraint,
    )
    request = ChatRequest(
        model=model,
        conversation=Conversation(
            messages=messages,
            tools=offered.tools,
            strict_tools=offered.strict,
            tool_choice=tool_choice,
            single_call=not fields.flag("parallel_tool_calls", default=True),
            options=_read_template_options(fields),
        ),
        parameters=parameters,
        is_streamed=is_streamed,
        has_usage=has_usage,
        has_logprobs=has_logprobs,
        has_token_ids=fields.flag("return_token_ids"),  # vLLM's
        metadata=read_metadata(fields),
        store=read_store(fields),
    )
    refuse_penalties(fields)
    read_labels(fields)
    refuse(fields, "audio", "function_call", "functions", "prediction", "reasoning_effort", "web_search_options")
    refuse(fields, modalities=["text"], verbosity="medium")
    fields.finish()
    return request


def _read_max_tokens(fields: RequestFields) -> int | None:
    old, new = fields.integer("max_tokens", low=1), fields.integer("max_completion_tokens", low=1)
    if old is not None and new is not None and old != new:
        raise fields.refusal("max_tokens", "is another number than max_completion_tokens; send one of them")
    return old if new is None else new


def _read_template_options(fields: RequestFields) -> Mapping[str, Any]:  # Any: plain JSON
    """vLLM's, such as ``{"enable_thinking": false}``."""
    return fields.mapping("chat_template_kwargs") or {}
