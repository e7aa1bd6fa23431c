"""Tracing: spans of OpenTelemetry. ``trace_encoding`` encodes them, ``trace_export`` sends them.

No other file imports OpenTelemetry.

While tracing is off, nothing is imported and ``span`` returns one shared object that does nothing. While it is on, a
thread exports finished spans in batches; its queue is bounded, and spans that do not fit are dropped. A collector that
does not answer costs a log line, and never delays or fails a request.

A trace begins with an HTTP request (``begin_request``) or with a recovery (``begin``). Other spans are parts of a trace
in progress: where there is none, ``span`` does nothing.
"""

from __future__ import annotations

import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, cast

from chockstone.extras import ExtraMissing, require
from chockstone.telemetry.spans import Attribute, SpanPlace
from chockstone.telemetry.trace_export import make_exporter

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import SpanContext

log = logging.getLogger(__name__)
STOP_SECONDS: Final = 1.0  # for the last spans, when the process ends
_TRACES: Final = "/v1/traces"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_SAMPLER: Final = "OTEL_TRACES_SAMPLER"
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class TracingConfig:
    endpoint: str | None = None  # URL of the collector, without /v1/traces; None: that of the OTEL_* variables
    ratio: float | None = None  # of traces that are recorded; None: all, or what OTEL_TRACES_SAMPLER says

    @property
    def is_on(self) -> bool:
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return False
        return self.endpoint is not None or any(os.environ.get(name) for name in _ENDPOINTS)

    @property
    def records_all(self) -> bool:
        """Whether each trace is recorded, other than those that a client leaves out."""
        return self.ratio == 1.0 or (self.ratio is None and not os.environ.get(_SAMPLER))

    @property
    def shown_endpoint(self) -> str:
        """For messages. A URL in a variable may hold a password, so it is not repeated."""
        return self.endpoint or next((name for name in _ENDPOINTS if os.environ.get(name)), "none")


class Span(Protocol):
    """A span in progress. As a context manager it is the current one within its block, and ends with the block."""

    def __enter__(self) -> Span: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def set(self, **attributes: Attribute) -> None: ...

    def rename(self, name: str, /) -> None: ...

    def fail(self, reason: str, /) -> None:
        """Mark it as failed."""

    def end(self) -> None:
        """For a span that is not used as a context manager. Only the first call counts."""

    def part(self, name: str, /, **attributes: Attribute) -> Span:
        """A span that is a part of this one, whichever is the current one."""

    def current(self) -> AbstractContextManager[None]:
        """It is the current span within the block, and does not end with it."""


class _Nothing:
    """Stands for a span while tracing is off, and for a span of a trace that is not recorded."""

    __slots__ = ()

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def set(self, **_attributes: Attribute) -> None:
        return None

    def rename(self, _name: str, /) -> None:
        return None

    def fail(self, _reason: str, /) -> None:
        return None

    def end(self) -> None:
        return None

    def part(self, _name: str, /, **_attributes: Attribute) -> Span:
        return self

    def current(self) -> AbstractContextManager[None]:
        return nullcontext()


class _Switch:
    """Whether this process traces."""

    tracing: _Tracing | None = None  # None: it does not


NO_SPAN: Final[Span] = _Nothing()
_SWITCH: Final = _Switch()


def start(config: TracingConfig, *, role: str) -> None:
    """Begin to trace in this process, if the configuration says so. ``role``: server, replica or worker.

    Where OpenTelemetry is not installed, a warning is logged: the variables of the environment may be meant for other
    programs.
    """
    if not config.is_on:
        return
    try:
        require("otel", "tracing")
    except ExtraMissing as error:
        log.warning("traces not exported error=%s", error)
        return
    _SWITCH.tracing = _Tracing(config, role=role)
    log.debug("tracing started endpoint=%s role=%s", config.shown_endpoint, role)


def stop() -> None:
    """Export the last spans, for a second at most, and trace no more."""
    ending, _SWITCH.tracing = _SWITCH.tracing, None
    if ending is not None:
        ending.stop()


def span(name: str, /, **attributes: Attribute) -> Span:
    """A part of the current span; nothing where no trace is in progress."""
    tracing = _SWITCH.tracing
    return NO_SPAN if tracing is None else tracing.part(name, attributes)


def begin(name: str, /, **attributes: Attribute) -> Span:
    """A part of the current span; where no trace is in progress, a new trace begins with it."""
    tracing = _SWITCH.tracing
    return NO_SPAN if tracing is None else tracing.begin(name, attributes)


def begin_request(name: str, /, *, traceparent: str | None, **attributes: Attribute) -> Span:
    """The span of an HTTP request: a part of the client's trace, or the first of a new trace."""
    tracing = _SWITCH.tracing
    return NO_SPAN if tracing is None else tracing.begin_request(name, traceparent, attributes)


def traceparent() -> str | None:
    """The current span as a ``traceparent`` field, for another process or a journal; None where there is none."""
    tracing = _SWITCH.tracing
    return None if tracing is None else tracing.traceparent()


def continuing(traceparent: str | None) -> AbstractContextManager[None]:
    """Spans of the block are parts of the span that ``traceparent`` names."""
    tracing = _SWITCH.tracing
    return nullcontext() if tracing is None else tracing.continuing(traceparent)


def accept_traceparent(field: object) -> str | None:
    """A ``traceparent`` field of version 00, as it was sent; None if it is not a valid one."""
    return field if isinstance(field, str) and _TRACEPARENT.fullmatch(field) else None


_current: Final[ContextVar[SpanPlace | None]] = ContextVar("chockstone_span", default=None)


class _Tracing:
    """OpenTelemetry, set up. Its imports are here, so that a process that does not trace loads none of it.

    Spans are recorded as plain values, and the thread that exports them encodes them. The spans of OpenTelemetry's
    tracer take four times as long on the path of a request.
    """

    def __init__(self, config: TracingConfig, *, role: str) -> None:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        endpoint = None if config.endpoint is None else config.endpoint.rstrip("/") + _TRACES
        self._sampler = None if config.records_all else _sampler(config)
        self._batches = BatchSpanProcessor(make_exporter(endpoint, role=role, shown_endpoint=config.shown_endpoint))
        self._emit = cast("Callable[[_Recorded], None]", self._batches.on_end)  # its queue passes on what it is given

    def stop(self) -> None:
        thread = threading.Thread(target=self._batches.shutdown, name="traces", daemon=True)
        thread.start()
        thread.join(STOP_SECONDS)

    def part(self, name: str, attributes: Mapping[str, Attribute]) -> Span:
        parent = _current.get()
        return NO_SPAN if parent is None or not parent.is_sampled else _Recorded(self, name, parent, attributes)

    def begin(self, name: str, attributes: Mapping[str, Attribute]) -> Span:
        parent = _current.get()
        if parent is not None:
            return _Recorded(self, name, parent, attributes)
        return self._first(name, None, attributes)

    def begin_request(self, name: str, traceparent: str | None, attributes: Mapping[str, Attribute]) -> Span:
        return self._first(name, _remote(traceparent), attributes, is_request=True)

    def traceparent(self) -> str | None:
        current = _current.get()
        if current is None:
            return None
        return f"00-{current.trace_id:032x}-{current.span_id:016x}-{current.is_sampled:02x}"

    @contextmanager
    def continuing(self, traceparent: str | None) -> Iterator[None]:
        token = _current.set(_remote(traceparent))
        try:
            yield
        finally:
            _current.reset(token)

    def emit(self, span: _Recorded) -> None:
        self._emit(span)

    def _first(
        self, name: str, parent: SpanPlace | None, attributes: Mapping[str, Attribute], *, is_request: bool = False
    ) -> Span:
        """The first span of a trace, or of a trace's part in this process. The sampler decides about all below it."""
        trace_id = _new_id(128) if parent is None else parent.trace_id
        is_sampled = self._is_sampled(name, trace_id, parent)
        start = parent or SpanPlace(trace_id, 0, is_sampled)
        return _Recorded(self, name, start._replace(is_sampled=is_sampled), attributes, is_request=is_request)

    def _is_sampled(self, name: str, trace_id: int, parent: SpanPlace | None) -> bool:
        if self._sampler is None:
            return parent is None or parent.is_sampled
        from opentelemetry.context import Context
        from opentelemetry.sdk.trace.sampling import Decision
        from opentelemetry.trace import NonRecordingSpan, set_span_in_context

        context = Context()
        if parent is not None:
            context = set_span_in_context(NonRecordingSpan(_span_context(parent)), context)
        return self._sampler.should_sample(context, trace_id, name).decision is Decision.RECORD_AND_SAMPLE


def _remote(traceparent: str | None) -> SpanPlace | None:
    """The span of another process; None if there is none."""
    if traceparent is None:
        return None
    _, trace_id, span_id, flags = traceparent.split("-")
    return SpanPlace(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1), is_remote=True)


def _new_id(bits: int) -> int:
    """0 is not an id."""
    return random.getrandbits(bits) or 1


class _Sampled:
    """Tells the queue of OpenTelemetry that a span is to be exported."""

    class trace_flags:  # noqa: N801  # named as there
        sampled = True


class _Recorded:
    """A span of a trace, recorded if the trace is sampled."""

    __slots__ = (
        "_token",
        "_tracing",
        "attributes",
        "end_ns",
        "failure",
        "is_request",
        "name",
        "parent",
        "place",
        "start_ns",
    )
    context: Final = _Sampled  # as BatchSpanProcessor reads it

    def __init__(
        self,
        tracing: _Tracing,
        name: str,
        parent: SpanPlace,
        attributes: Mapping[str, Attribute],
        *,
        is_request: bool = False,
    ) -> None:
        """``parent``: its span id is 0 where a trace begins."""
        self._tracing = tracing
        self._token: Token[SpanPlace | None] | None = None
        self.name = name
        self.parent = parent
        self.place = SpanPlace(parent.trace_id, _new_id(64), parent.is_sampled)
        self.attributes = dict(attributes)
        self.is_request = is_request
        self.failure: str | None = None
        self.start_ns = time.time_ns()
        self.end_ns = 0

    def __enter__(self) -> Span:
        self._token = _current.set(self.place)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            _current.reset(self._token)
        if error is not None:
            self.fail(f"{type(error).__name__}: {error}")
        self.end()

    def set(self, **attributes: Attribute) -> None:
        self.attributes.update(attributes)

    def rename(self, name: str, /) -> None:
        self.name = name

    def fail(self, reason: str, /) -> None:
        self.failure = reason[:500]

    def end(self) -> None:
        if not self.end_ns:
            self.end_ns = time.time_ns()
            if self.place.is_sampled:
                self._tracing.emit(self)

    def part(self, name: str, /, **attributes: Attribute) -> Span:
        return _Recorded(self._tracing, name, self.place, attributes) if self.place.is_sampled else NO_SPAN

    @contextmanager
    def current(self) -> Iterator[None]:
        token = _current.set(self.place)
        try:
            yield
        finally:
            _current.reset(token)


def _span_context(place: SpanPlace) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(place.trace_id, place.span_id, place.is_remote, TraceFlags(int(place.is_sampled)))


def _sampler(config: TracingConfig) -> Sampler:
    """A client may leave its trace out, but may not have more of its traces recorded than the operator wants.

    The decision follows from the trace's id, so all processes with the same ratio decide alike.
    """
    from opentelemetry.sdk.trace import sampling

    if config.ratio is None and os.environ.get(_SAMPLER):
        return sampling._get_from_env_or_default()
    ratio = sampling.TraceIdRatioBased(1.0 if config.ratio is None else config.ratio)
    return sampling.ParentBased(root=ratio, remote_parent_sampled=ratio)
