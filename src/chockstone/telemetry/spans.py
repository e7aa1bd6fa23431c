"""Spans: what is recorded of a span, and how other processes name it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

Attribute = str | int | float | bool


class SpanPlace(NamedTuple):
    """A span as others see it: those of this process, and those of other processes that traces continue from."""

    trace_id: int
    span_id: int
    is_sampled: bool
    is_remote: bool = False


class FinishedSpan(Protocol):
    """A span as it was recorded."""

    name: str
    parent: SpanPlace  # its span id is 0 where a trace begins
    place: SpanPlace
    attributes: dict[str, Attribute]
    is_request: bool
    failure: str | None
    start_ns: int
    end_ns: int
