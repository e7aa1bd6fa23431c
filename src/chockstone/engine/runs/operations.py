"""Operations: what runs are asked to do, as data, so that it can be written down and done again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson
import xxhash

from chockstone.engine.futures import Promise, Result
from chockstone.engine.journal.journal import Record
from chockstone.wire.failures import BadRequest

Word = Literal["open", "pass", "optim_step", "save", "snapshot", "load", "close"]
CHANGES_STATE: Final = frozenset[str]({"open", "pass", "optim_step", "load"})
_REQUEST: Final = re.compile(r"([A-Za-z0-9_-]{1,100}:train:[0-9]{1,18}):[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class OperationOutcome:
    """What came of an operation: what the client is told, and what doing it again must know."""

    result: Result
    facts: Mapping[str, Any] = field(default_factory=dict)  # Any: plain JSON

    def explain(self) -> str:
        """Why it failed, if it did."""
        return str(orjson.loads(self.result.body).get("error", "")) if self.result.is_failure else ""

    def trace(self) -> ResultRecord:
        return ResultRecord(self.result.is_failure, digest_of(self.result.body), self.facts)


@dataclass(frozen=True, slots=True)
class ResultRecord:
    """What is remembered of an outcome."""

    is_failure: bool
    digest: int
    facts: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Operation:
    """One request to a run. Its place in the run's journal is its place in the run's life."""

    word: str  # one of Word; from a journal it is whatever stands there
    values: Mapping[str, Any]  # Any: plain JSON
    request_id: str
    seq_id: int | None  # None: from a client that does not number its requests
    sequence: int = 0  # in the journal
    after: int | None = None  # the sequence of the operation before it; None: a journal of before does not say
    body: bytes | None = None  # None: it has to be read again
    loss: Mapping[str, Any] | None = None  # definition of the custom loss it uses; None: it uses none, or as for body
    record: Record | None = None
    promise: Promise | None = None
    damage: str | None = None  # why its record cannot be trusted
    trace: ResultRecord | None = None  # once it has ended
    result_sequence: int = 0  # of its result, in the journal
    is_begun: bool = False
    is_released: bool = False  # its run has gone on although it is not finished
    is_old: bool = False  # of an earlier server, which may have begun it
    is_gone: bool = False  # nobody will ask for its result again
    is_covered: bool = False  # no replay will ever begin before it
    deaths: int = 0  # of workers, while it ran
    attempts: int = 0  # by servers that did not live to see its end

    @property
    def loss_id(self) -> str | None:
        """Of the custom loss it uses. A journal of a version before this one does not say."""
        loss_id: str | None = self.values.get("loss_id")
        return loss_id

    @property
    def is_again(self) -> bool:
        """Whether an earlier attempt may have left something behind."""
        return self.deaths > 0 or self.is_old


def check_plain(values: Mapping[str, Any]) -> None:
    """Raises BadRequest for what cannot be written down: numbers beyond 64 bits, strings that are no text."""
    try:
        orjson.dumps(dict(values))
    except (TypeError, ValueError) as error:
        raise BadRequest(f"the request holds a value that cannot be kept: {error}; send another one") from error


def digest_of(content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(content)


def request_id_of(run_id: str, seq_id: int) -> str:
    """The same for a repeat, also to another server."""
    return f"{run_id}:{seq_id}"


def run_of(request_id: str) -> str | None:
    """The run that such a request was made to. Anybody may ask for anything: what becomes a file's name is checked."""
    found = _REQUEST.fullmatch(request_id)
    return None if found is None else found[1]
