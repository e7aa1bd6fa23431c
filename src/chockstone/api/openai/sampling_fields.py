"""Sampling fields: what all of OpenAI's requests for text have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chockstone.api.chat.chat_service import MAX_CHOICES
from chockstone.api.chat.orders import GenerationParameters
from chockstone.api.chat.request_fields import RequestFields
from chockstone.wire.codecs.sample_request import MAX_INT32, MAX_STOP_CHARACTERS, MAX_STOPS
from chockstone.wire.failures import BadParameter

MAX_TOP_LOGPROBS: Final = 20
_MOST_METADATA: Final = 16  # and each of 512 characters, as with OpenAI
_LONGEST_LABEL: Final = 512
_UNSUPPORTED: Final = "is not supported by this server; leave it out"
_LABELS: Final = ("user", "safety_identifier", "prompt_cache_key")  # name who asks, and change no answer


def read_parameters(
    fields: RequestFields,
    *,
    max_tokens: int | None,
    choices: int = 1,
    alternatives: int = 0,
    constraint: Mapping[str, Any] | None = None,  # Any: plain JSON
) -> GenerationParameters:
    temperature = fields.number("temperature", low=0)
    top_p = fields.number("top_p")
    top_k = fields.integer("top_k", low=-1, high=MAX_INT32)  # vLLM's
    return GenerationParameters(
        max_tokens=max_tokens,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=top_k or -1,
        seed=fields.integer("seed", low=-(2**63)),
        stop=read_stop(fields),
        choices=choices,
        alternatives=alternatives,
        constraint=constraint,
    )


def read_format(wanted: RequestFields | None, *, inner: str | None = None) -> dict[str, Any] | None:  # Any: plain JSON
    """The constraint of a format; None: any text. ``inner``: the field that has the schema and its name."""
    if wanted is None:
        return None
    kind = wanted.word("type", "text", "json_object", "json_schema")
    if kind is None:
        raise wanted.refusal("type", "is missing")
    constraint: dict[str, Any] | None = None if kind == "text" else {"json_object": True}
    if kind == "json_schema":
        holder = wanted if inner is None else wanted.inner(inner)
        if holder is None:
            raise wanted.refusal(str(inner), "is missing")
        holder.needed_text("name")
        holder.text("description", may_be_empty=True)
        holder.flag("strict")
        constraint = {"json_schema": holder.mapping("schema") or {"type": "object"}}
        holder.finish()
    wanted.finish()
    return constraint


def read_choices(fields: RequestFields) -> int:
    return fields.integer("n", low=1, high=MAX_CHOICES) or 1


def read_stop(fields: RequestFields) -> tuple[str, ...]:
    value = fields.take("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise fields.refusal("stop", "must be a text or a list of texts, none of them empty")
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise fields.refusal(
            "stop", f"takes at most {MAX_STOPS} texts, each of at most {MAX_STOP_CHARACTERS} characters"
        )
    return tuple(stops)


def read_top_logprobs(fields: RequestFields, *, has_logprobs: bool) -> int:
    count = fields.integer("top_logprobs", low=0, high=MAX_TOP_LOGPROBS) or 0
    if count and not has_logprobs:
        raise fields.refusal("top_logprobs", "needs logprobs to be true")
    return count


def read_metadata(fields: RequestFields) -> Mapping[str, str]:
    found = fields.mapping("metadata") or {}
    texts = [text for pair in found.items() for text in pair]
    if len(found) > _MOST_METADATA or not all(isinstance(text, str) and len(text) <= _LONGEST_LABEL for text in texts):
        most = f"{_MOST_METADATA} texts, each of at most {_LONGEST_LABEL} characters"
        raise fields.refusal("metadata", f"must be an object of at most {most}")
    return found


def read_store(fields: RequestFields) -> bool | None:
    """None: the request says nothing."""
    if (value := fields.take("store")) is not None and not isinstance(value, bool):
        raise fields.refusal("store", "must be true or false")
    return value


def refuse_penalties(fields: RequestFields) -> None:
    for name in ("frequency_penalty", "presence_penalty"):
        fields.refuse(name, _UNSUPPORTED, neutral=(0, 0.0))
    fields.refuse("logit_bias", _UNSUPPORTED, neutral=({},))


def read_labels(fields: RequestFields) -> None:
    """Names of who asks, which change no answer, and tiers of service, of which there is one."""
    for name in _LABELS:
        fields.text(name, may_be_empty=True)
    fields.refuse("service_tier", "has no tiers here; leave it out", neutral=("auto", "default"))


def refuse(fields: RequestFields, *names: str, **neutral: Any) -> None:  # Any: values that ask for nothing, by name
    for name in (*names, *neutral):
        fields.refuse(name, _UNSUPPORTED, neutral=(neutral[name],) if name in neutral else ())


def read_stream(fields: RequestFields) -> tuple[bool, bool]:
    """Whether to stream, and whether to add the usage at the end."""
    is_streamed = fields.flag("stream")
    options = fields.inner("stream_options")
    if options is None:
        return is_streamed, False
    if not is_streamed:
        raise BadParameter("stream_options needs stream to be true", param="stream_options")
    has_usage = options.flag("include_usage")
    options.refuse("include_obfuscation", _UNSUPPORTED, neutral=(False,))
    options.finish()
    return is_streamed, has_usage
