"""Trace export: finished spans, sent by OpenTelemetry's exporter for OTLP over HTTP.

Spans are recorded as plain values (``tracing``), and the thread that exports encodes them (``trace_encoding``).
OpenTelemetry is imported when tracing starts and not before.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log = logging.getLogger(__name__)
_EXPORTERS: Final = "opentelemetry.exporter"  # loggers that say why a batch was not exported
_LONGEST_COMPLAINT: Final = 300  # characters
_EXPORT_SECONDS: Final = 5.0  # for one batch, with its retries


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
    from opentelemetry.exporter.otlp.proto.http import trace_exporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    from chockstone.telemetry.trace_encoding import SERVICE, SpanEncoder

    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", SERVICE)})
    resource = resource.merge(Resource({"chockstone.role": role, "process.pid": os.getpid()}))
    # The exporter takes no other encoder. It looks its own up under this name, for each batch.
    vars(trace_exporter)["encode_spans"] = SpanEncoder(resource.attributes).encode
    inner = trace_exporter.OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_SECONDS)
    complaints = _Complaints()
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    logger.handlers = [complaints]

    class Exporter(SpanExporter):
        is_failing = False

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            complaints.first = ""
            try:
                result = inner.export(spans)
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
