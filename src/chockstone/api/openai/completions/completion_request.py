"""Completion requests: the body of a request for a completion of a plain prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from chockstone.api.chat.chat_service import MAX_CHOICES
from chockstone.api.chat.orders import GenerationParameters, PlainPrompt, TokenPrompt
from chockstone.api.chat.request_fields import RequestFields
from chockstone.api.openai.sampling_fields import (
    MAX_TOP_LOGPROBS,
    read_choices,
    read_labels,
    read_metadata,
    read_parameters,
    read_store,
    read_stream,
    refuse,
    refuse_penalties,
)
from chockstone.wire.codecs.pass_request import MAX_TOKEN

DEFAULT_TOKENS: Final = 16  # as OpenAI's


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    model: str
    prompts: tuple[PlainPrompt | TokenPrompt, ...]
    parameters: GenerationParameters
    is_streamed: bool
    has_usage: bool  # at the end of a stream
    has_logprobs: bool
    has_token_ids: bool
    metadata: Mapping[str, str]
    store: bool | None  # None: the request says nothing


def read_completion_request(fields: RequestFields) -> CompletionRequest:
    """Raises BadParameter, which names the field."""
    model = fields.needed_text("model")
    prompts = _read_prompts(fields)
    is_streamed, has_usage = read_stream(fields)
    if is_streamed and len(prompts) > 1:
        raise fields.refusal("prompt", "is a list of several prompts, which cannot be streamed; send one at a time")
    logprobs = fields.integer("logprobs", high=MAX_TOP_LOGPROBS)
    choices = read_choices(fields)
    if choices * len(prompts) > MAX_CHOICES:
        raise fields.refusal("n", f"times the number of prompts is more than {MAX_CHOICES}")
    max_tokens = fields.integer("max_tokens", low=1)
    parameters = read_parameters(
        fields, max_tokens=max_tokens or DEFAULT_TOKENS, choices=choices, alternatives=logprobs or 0
    )
    request = CompletionRequest(
        model=model,
        prompts=prompts,
        parameters=parameters,
        is_streamed=is_streamed,
        has_usage=has_usage,
        has_logprobs=logprobs is not None,
        has_token_ids=fields.flag("return_token_ids"),  # vLLM's
        metadata=read_metadata(fields),
        store=read_store(fields),
    )
    if request.store and len(prompts) > 1:
        raise fields.refusal("store", "is for one prompt; send one at a time")
    fields.refuse("best_of", "is not supported unless it is n", neutral=(choices,))
    refuse_penalties(fields)
    read_labels(fields)
    refuse(fields, echo=False, suffix="")
    fields.finish()
    return request


def _read_prompts(fields: RequestFields) -> tuple[PlainPrompt | TokenPrompt, ...]:
    """One text, one list of tokens, or a list of either."""
    value = fields.needed("prompt")
    is_list_of_prompts = isinstance(value, list) and any(isinstance(each, str | list) for each in value)
    found = value if is_list_of_prompts else [value]
    if len(found) > MAX_CHOICES:
        raise fields.refusal("prompt", f"is a list of {len(found)} prompts; at most {MAX_CHOICES} are taken")
    return tuple(_prompt(fields, each) for each in found)


def _prompt(fields: RequestFields, value: Any) -> PlainPrompt | TokenPrompt:  # Any: plain JSON
    if isinstance(value, str) and value:
        return PlainPrompt(value)
    if isinstance(value, list) and value and all(type(token) is int and 0 <= token <= MAX_TOKEN for token in value):
        return TokenPrompt(tuple(value))
    raise fields.refusal("prompt", "must be a text or a list of tokens, or a list of these, and not empty")
