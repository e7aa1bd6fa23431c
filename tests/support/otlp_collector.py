"""A collector of traces on loopback: a plain HTTP server that takes OTLP as protobuf, and keeps every span."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class CollectedSpan:
    name: str
    trace_id: str
    span_id: str
    parent_id: str  # empty: it has none
    started_ns: int
    ended_ns: int
    is_failure: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]

    @property
    def role(self) -> str:
        return str(self.resource["chockstone.role"])


@dataclass
class Collector:
    url: str
    spans: list[CollectedSpan] = field(default_factory=list)
    close: Callable[[], None] = lambda: None  # from then on its port refuses connections
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            for of_resource in request.resource_spans:
                resource = _plain(of_resource.resource.attributes)
                for of_scope in of_resource.scope_spans:
                    self.spans += [_collected(each, resource) for each in of_scope.spans]
            self._changed.notify_all()

    def until(self, is_enough: Callable[[list[CollectedSpan]], bool]) -> list[CollectedSpan]:
        """All spans, once there are enough."""
        deadline = time.monotonic() + _WAIT_SECONDS
        with self._changed:
            while not is_enough(self.spans):
                left = deadline - time.monotonic()
                assert left > 0, f"only these spans came: {sorted(each.name for each in self.spans)}"
                self._changed.wait(left)
            return list(self.spans)


@contextmanager
def collecting() -> Iterator[Collector]:
    """It is closed with the block at the latest."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_good = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            if is_good:
                collector.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200 if is_good else 400)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
        thread.start()

        def close() -> None:
            server.shutdown()
            thread.join()
            server.server_close()

        collector = Collector(f"http://127.0.0.1:{server.server_address[1]}", close=close)
        try:
            yield collector
        finally:
            close()


def _collected(span: Any, resource: dict[str, Any]) -> CollectedSpan:
    return CollectedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == 2,
        _plain(span.attributes),
        resource,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
