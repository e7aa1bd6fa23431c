"""Encoded spans equal those that OpenTelemetry's own encoder makes of the same facts."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

pytest.importorskip("opentelemetry.proto")

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from chockstone.telemetry.spans import Attribute, SpanPlace
from chockstone.telemetry.trace_encoding import SpanEncoder

FIRST = SpanPlace(1 << 100, 0, is_sampled=True)
PLACE = SpanPlace(1 << 100, 1 << 60, is_sampled=True)
RESOURCE = {"service.name": "chockstone", "process.pid": 7, "process.command_args": ("serve", "--model")}


@dataclass
class Recorded:
    name: str = "POST /api/v1/optim_step"
    parent: SpanPlace = FIRST
    place: SpanPlace = PLACE
    attributes: dict[str, Attribute] = field(default_factory=dict)
    is_request: bool = False
    failure: str | None = None
    start_ns: int = 10**18
    end_ns: int = 10**18 + 5


def by_opentelemetry(span: Recorded, attributes: dict[str, Attribute]) -> ReadableSpan:
    def context(place: SpanPlace) -> SpanContext:
        return SpanContext(place.trace_id, place.span_id, place.is_remote, TraceFlags(TraceFlags.SAMPLED))

    return ReadableSpan(
        span.name,
        context=context(span.place),
        parent=context(span.parent) if span.parent.span_id else None,
        resource=Resource(RESOURCE),
        attributes=attributes,
        kind=SpanKind.SERVER if span.is_request else SpanKind.INTERNAL,
        status=Status(StatusCode.UNSET) if span.failure is None else Status(StatusCode.ERROR, span.failure),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope("chockstone"),
    )


@pytest.mark.parametrize(
    "span",
    [
        Recorded(),
        Recorded(is_request=True, parent=SpanPlace(1 << 100, 3, is_sampled=True, is_remote=True)),
        Recorded(parent=SpanPlace(1 << 100, 3, is_sampled=True), failure="Busy: the queue is full"),
    ],
    ids=["first", "remote parent", "failed part"],
)
def test_a_span_is_encoded_as_opentelemetry_encodes_it(span: Recorded) -> None:
    span.attributes = {"http.route": "/api", "run": "a:train:0", "tokens": 5, "loss": 0.5, "again": True}
    named = {"http.route": "/api", "chockstone.run": "a:train:0", "chockstone.tokens": 5}
    named |= {"chockstone.loss": 0.5, "chockstone.again": True}

    ours = SpanEncoder(RESOURCE).encode([span, span])

    theirs = encode_spans([by_opentelemetry(span, named)] * 2)
    for message in theirs.resource_spans[0].scope_spans[0].spans:
        if not message.status.code:
            message.ClearField("status")  # unset in both; they send it empty
    assert ours == theirs
