"""Trace export: finished spans as OpenTelemetry has them, sent by OTLP over HTTP.

Spans are recorded as plain values (``tracing``). The thread that exports makes them into those of OpenTelemetry, which
is imported when tracing starts and not before.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import SpanContext

log = logging.getLogger(__name__)
Attribute = str | int | float | bool
_SERVICE: Final = "chockstone"
_EXPORTERS: Final = "opentelemetry.exporter"  # loggers that say why a batch was not exported
_LONGEST_COMPLAINT: Final = 300  # characters
_EXPORT_SECONDS: Final = 5.0  # for one batch, with its retries


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


def _by_identity(resource: Resource) -> Resource:
    """The same, compared by identity. OpenTelemetry hashes it for each span, which encodes all of its attributes."""
    kind = type("Resource", (type(resource),), {"__hash__": object.__hash__, "__eq__": object.__eq__})
    return cast("Resource", kind(resource.attributes))


def _conversion(resource: Resource) -> Callable[[FinishedSpan], ReadableSpan]:
    """Makes a span into what exporters of OpenTelemetry take."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    scope, no_failure, sampled = (
        InstrumentationScope(_SERVICE),
        Status(StatusCode.UNSET),
        TraceFlags(TraceFlags.SAMPLED),
    )

    def place(found: SpanPlace) -> SpanContext:
        return SpanContext(found.trace_id, found.span_id, found.is_remote, sampled)

    def convert(span: FinishedSpan) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            context=place(span.place),
            parent=place(span.parent) if span.parent.span_id else None,
            resource=resource,
            attributes=_attributes(span.attributes),
            kind=SpanKind.SERVER if span.is_request else SpanKind.INTERNAL,
            status=no_failure if span.failure is None else Status(StatusCode.ERROR, span.failure),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=scope,
        )

    return convert


def _attributes(given: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Names of our own begin with our name."""
    return {name if "." in name else f"{_SERVICE}.{name}": value for name, value in given.items()}


class _Complaints(logging.Handler):
    """Takes the lines of OpenTelemetry out of the log: it repeats them for each batch.

    The first line about a batch has the cause, such as a refused connection. The last one says that it gave up.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""  # about the batch that is exported now

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(_EXPORTERS):
            return  # that the queue is full is no reason: spans that do not fit are dropped
        self.first = self.first or record.getMessage()[:_LONGEST_COMPLAINT]


def make_exporter(endpoint: str | None, *, role: str, shown_endpoint: str) -> SpanExporter:
    """An exporter by OTLP, for spans as we record them. ``endpoint`` None: that of the OTEL_* variables.

    It logs one line when it begins to fail and one when it works again.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    inner = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_SECONDS)
    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", _SERVICE)})
    resource = _by_identity(resource.merge(Resource({"chockstone.role": role, "process.pid": os.getpid()})))
    complaints = _Complaints()
    convert = _conversion(resource)
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    logger.handlers = [complaints]

    class Exporter(SpanExporter):
        is_failing = False

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            complaints.first = ""
            try:
                recorded = cast("Sequence[FinishedSpan]", spans)
                result = inner.export([convert(each) for each in recorded])
            except Exception as error:  # noqa: BLE001  # logged; the next batch may go better
                self._note(str(error) or type(error).__name__)
                return SpanExportResult.FAILURE
            self._note(None if result is SpanExportResult.SUCCESS else complaints.first or "the collector refuses them")
            return result

        def _note(self, failure: str | None) -> None:
            if failure is not None and not self.is_failing:
                log.warning(
                    "traces not exported, and dropped until the collector answers endpoint=%s error=%r",
                    shown_endpoint,
                    failure,
                )
            if failure is None and self.is_failing:
                log.info("traces are exported again endpoint=%s", shown_endpoint)
            self.is_failing = failure is not None

        def shutdown(self) -> None:
            inner.shutdown()  # type: ignore[no-untyped-call]  # of OTLPSpanExporter, without types

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return inner.force_flush(timeout_millis)

    return Exporter()
