"""The origin of work: the HTTP request that it is done for, by the request's id and its place in a trace.

The id is ``X-Request-ID`` of HTTP: sent by the client, or made here. A context variable holds it, so every log line
that is written while the request or its operation is handled has it. A ``RequestOrigin`` carries id and trace to where
no context leads: into the journal, and to the worker.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from chockstone.telemetry import tracing

_REQUEST_ID: Final[ContextVar[str | None]] = ContextVar("x_request_id", default=None)
_VALID: Final = re.compile(r"[A-Za-z0-9._:/@+=-]{1,128}")


def new_request_id() -> str:
    return secrets.token_hex(8)


def accept_request_id(fields: Sequence[str]) -> str:
    """The id that the client sent, if it sent one that fits into a log line; else a new one.

    ``fields``: the values of all its X-Request-ID fields.
    """
    return fields[0] if len(fields) == 1 and _VALID.fullmatch(fields[0]) else new_request_id()


def current_request_id() -> str | None:
    """The id of the HTTP request that this code works for; None if it works for none."""
    return _REQUEST_ID.get()


@contextmanager
def working_for(request_id: str | None) -> Iterator[None]:
    """Log lines of this block, and of tasks that it starts, have this id; None: they have none."""
    token = _REQUEST_ID.set(request_id)
    try:
        yield
    finally:
        _REQUEST_ID.reset(token)


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    request_id: str | None = None
    traceparent: str | None = None  # of W3C Trace Context; None: the work is not traced

    @classmethod
    def here(cls) -> RequestOrigin:
        return cls(_REQUEST_ID.get(), tracing.traceparent())

    @classmethod
    def from_json(cls, found: object) -> RequestOrigin:
        """From a journal or a message. What cannot be an origin is left out."""
        if not isinstance(found, Mapping):
            return cls()
        request_id, traceparent = found.get("request"), found.get("trace")
        is_valid = isinstance(request_id, str) and _VALID.fullmatch(request_id)
        return cls(request_id if is_valid else None, tracing.accept_traceparent(traceparent))

    def to_json(self) -> dict[str, Any]:  # Any: plain JSON
        """Empty if nothing is known."""
        found = {"request": self.request_id, "trace": self.traceparent}
        return {name: value for name, value in found.items() if value is not None}

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Work of this block, and of tasks that it starts, is done for this request and belongs to its trace."""
        with working_for(self.request_id), tracing.continuing(self.traceparent):
            yield


NO_ORIGIN: Final = RequestOrigin()
