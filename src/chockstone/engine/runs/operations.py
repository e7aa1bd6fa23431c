"""Operations: one request to a run each, and how far it has got.

The request never changes. Its status does, from the acknowledgement to the deletion of its records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
import xxhash

from chockstone.engine.futures import Promise, Result
from chockstone.engine.history.points import Measurement
from chockstone.engine.journal.journal import Record
from chockstone.engine.runs.commands import CHANGES_STATE, Command
from chockstone.telemetry.origin import NO_ORIGIN, RequestOrigin
from chockstone.wire.failures import BadRequest

_REQUEST: Final = re.compile(r"([A-Za-z0-9_-]{1,100}:train:[0-9]{1,18}):[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class OperationOutcome:
    """How an operation ended: the client's result, and the facts that a replay needs."""

    result: Result
    facts: Mapping[str, Any] = field(default_factory=dict)  # Any: plain JSON
    tokens: int = 0  # that it trained
    ended_at: int = 0  # seconds since 1970; known where it trained tokens
    measured: Measurement | None = None  # numbers for the run's history

    @classmethod
    def failed(cls, error: BaseException) -> OperationOutcome:
        return cls(Result.failed(error))

    def explain(self) -> str:
        """The error message; empty if the operation succeeded."""
        return str(orjson.loads(self.result.body).get("error", "")) if self.result.is_failure else ""

    def record(self) -> ResultRecord:
        return ResultRecord(self.result.is_failure, digest_of(self.result.body), self.facts)


@dataclass(frozen=True, slots=True)
class ResultRecord:
    """What the journal keeps of an outcome in memory: a digest in place of the result's bytes."""

    is_failure: bool
    digest: int
    facts: Mapping[str, Any]  # Any: plain JSON


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """What was asked of a run, and where the journal has it."""

    command: Command
    request_id: str
    seq_id: int | None = None  # None: from a client that does not number its requests
    body: bytes | None = None  # None: the journal has it
    loss: Mapping[str, Any] | None = None  # definition of the custom loss; None: there is none, or the journal has it
    sequence: int = 0  # of its record in the journal
    after: int | None = None  # sequence of the operation before it; None: its journal does not record that
    record: Record | None = None
    damage: str | None = None  # why its record cannot be trusted
    is_old: bool = False  # taken by an earlier server, which may have begun it
    origin: RequestOrigin = NO_ORIGIN  # the HTTP request that asked for it


@dataclass(slots=True, eq=False)
class Operation:
    """A request and its status."""

    request: OperationRequest
    promise: Promise | None = None
    outcome: ResultRecord | None = None  # once it has ended
    result_sequence: int = 0  # of its result in the journal
    is_begun: bool = False
    begun_at: float | None = None  # by a monotonic clock; None: an earlier server began it
    is_released: bool = False  # the lane continued before it ended, as during a save
    is_gone: bool = False  # no client will ask for its result again
    is_covered: bool = False  # no replay will start before it
    deaths: int = 0  # workers that died while it ran
    attempts: int = 0  # starts by servers that died before it ended

    @property
    def command(self) -> Command:
        return self.request.command

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def sequence(self) -> int:
        return self.request.sequence

    @property
    def changes_state(self) -> bool:
        """Whether a replay must execute it again."""
        return isinstance(self.command, CHANGES_STATE)

    @property
    def is_retry(self) -> bool:
        """Whether an earlier attempt may have left something behind."""
        return self.deaths > 0 or self.request.is_old

    def attach(self, promise: Promise) -> None:
        """The promise has an id of its own where the operation has none."""
        self.promise = promise
        if promise.request_id != self.request_id:
            self.request = replace(self.request, request_id=promise.request_id)

    def begin(self, *, at: float | None = None) -> None:
        """``at``: now, by a monotonic clock; None if an earlier server has executed it."""
        self.is_begun = True
        self.begun_at = at

    def release(self) -> None:
        self.is_released = True

    def postpone(self) -> None:
        """The next server executes it; this one leaves no trace of it."""
        self.is_begun = False

    def count_death(self, *, was_sent: bool) -> None:
        """A worker died. An operation that was never sent to it is not the cause."""
        self.deaths += was_sent

    def end(self, outcome: ResultRecord) -> None:
        self.outcome = outcome
        self.request = replace(self.request, body=None, loss=None)  # the journal has them

    def forget_result(self) -> None:
        """The result is damaged in the journal: the operation counts as not ended."""
        self.outcome = None


def check_plain(values: Mapping[str, Any]) -> None:
    """Raises BadRequest for what JSON cannot hold: numbers beyond 64 bits, strings that are not valid Unicode."""
    try:
        orjson.dumps(dict(values))
    except (TypeError, ValueError) as error:
        raise BadRequest(f"the request holds a value that cannot be kept: {error}; send another one") from error


def digest_of(content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(content)


def request_id_of(run_id: str, seq_id: int) -> str:
    """A retried request has the same id, also on the next server."""
    return f"{run_id}:{seq_id}"


def run_of(request_id: str) -> str | None:
    """The run that a request was made to. The id comes from a client and names a file: it is checked."""
    found = _REQUEST.fullmatch(request_id)
    return None if found is None else found[1]
