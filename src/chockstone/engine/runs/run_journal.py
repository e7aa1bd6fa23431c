"""A run's journal: what the run was asked, and what came of it.

Operations are remembered from the older of its two recovery archives on: a replay may begin there.
Results stay in the files until nobody asks for them, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import orjson

from chockstone.engine.futures import Result
from chockstone.engine.journal.journal import Journal, JournalDamaged, JournalWriter, Record
from chockstone.engine.journal.mark_file import JournalMark, MarkFile
from chockstone.engine.journal.stall import wait_until_durable
from chockstone.engine.runs.kept_losses import LOSS, KeptLosses
from chockstone.engine.runs.operations import Operation, OperationOutcome, ResultRecord
from chockstone.engine.runs.used_seq_ids import UsedSeqIds

log = logging.getLogger(__name__)
Json = Mapping[str, Any]  # Any: plain JSON
_NOWHERE: Final = "there is no journal"


@dataclass(slots=True)
class JournalContents:
    """What a journal says of an earlier life."""

    facts: Json  # of the run
    numbers: UsedSeqIds
    operations: list[Operation] = field(default_factory=list)
    results: list[tuple[Operation, Record]] = field(default_factory=list)  # that somebody may ask for yet
    losses: list[Record] = field(default_factory=list)  # custom ones that operations use
    loose: list[int] = field(default_factory=list)  # what else is there
    has_gaps: bool = False  # some of it was covered, and deleted
    seals: Mapping[str, str] = field(default_factory=dict)  # of recovery archives, by name
    acknowledged_operations: int = 0  # as far as records tell: those of before were not counted
    newest_operation: int = 0  # the number of its record, which may be gone


class RunJournal:
    """With no journal below, nothing is written, and nothing outlives this process."""

    def __init__(self, journal: Journal | None, writer: JournalWriter | None) -> None:
        self._journal = journal
        self._writer = writer
        self.operations: list[Operation] = []  # oldest first
        self._unwritten: dict[str, asyncio.Future[None]] = {}  # by request id
        self._last: asyncio.Future[None] | None = None  # done when all so far is durable
        self._sequence = 0  # without a journal
        self._loose: list[int] = []  # records that only stand beside operations
        self._losses = KeptLosses()
        self._has_gaps = False
        self._is_closed = False
        self._birth = ""
        self._newest_operation = 0
        self.acknowledged_operations = 0  # since the run was made
        self.acknowledged: JournalMark | None = None  # the last operation that was, in this life of the server

    @classmethod
    async def create(
        cls, directory: Path, writer: JournalWriter, head: Json, mark_file: MarkFile | None = None
    ) -> RunJournal:
        """Anew: what was there under this name is of a run that never came to be. Raises JournalError, OSError."""
        journal = await Journal.open(directory, writer, mark_file=mark_file)
        if journal.records:
            await journal.remove()
            journal = await Journal.open(directory, writer, mark_file=mark_file)
        made = cls(journal, writer)
        made._birth = head["run"]["birth"]
        made.rotate(head)
        return made

    @classmethod
    async def reopen(
        cls, directory: Path, writer: JournalWriter, mark_file: MarkFile | None = None
    ) -> tuple[RunJournal, JournalContents]:
        """Raises JournalError when it cannot be read at all."""
        journal = await Journal.open(directory, writer, mark_file=mark_file)
        made = cls(journal, writer)
        past = _read_past(journal.records)
        made._birth = past.facts.get("birth", "")
        made._newest_operation = past.newest_operation
        made.acknowledged_operations = past.acknowledged_operations
        made.operations = past.operations
        made._loose = past.loose
        made._losses = KeptLosses(past.losses)
        made._has_gaps = past.has_gaps
        journal.records.clear()
        return made, past

    @property
    def is_kept(self) -> bool:
        return self._journal is not None

    @property
    def size_bytes(self) -> int:
        return 0 if self._journal is None else self._journal.size_bytes

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def next_sequence(self) -> int:
        return 0 if self._journal is None else self._journal.next_sequence

    def go_on_after(self, loss: JournalMark, *, archived: int) -> None:
        """The journal lost its end, and goes on without. No number of an operation in an archive is used again."""
        assert self._journal is not None
        self.acknowledged_operations = loss.operations
        if archived >= self._journal.next_sequence:
            self._journal.skip_to(archived + 1)
            self._newest_operation = archived
            self._has_gaps = True
            for operation in self.operations:  # the archive holds them all, also one whose result is lost
                operation.is_begun = operation.is_begun or operation.sequence <= archived

    def first_of_all(self) -> Operation | None:
        """The opening of the run, if the journal has everything since."""
        first = self.operations[0] if self.operations else None
        return None if first is None or first.word != "open" or self._has_gaps else first

    def add(self, operation: Operation) -> None:
        """Write it down, soon: ``written`` waits for it."""
        if self._journal is None:
            self._sequence += 1
            operation.sequence = self._sequence
            return
        if operation.loss_id is not None and operation.loss is not None and not self._losses.has(operation.loss_id):
            loss = {"kind": LOSS, "loss_id": operation.loss_id}
            self._losses.add(self._journal.append(loss, orjson.dumps(operation.loss)).record)
        head = {
            "kind": "operation",
            "word": operation.word,
            "seq_id": operation.seq_id,
            "request_id": operation.request_id,
            "values": dict(operation.values),
            "count": self.acknowledged_operations + 1,
            "after": self._newest_operation,
        }
        self.acknowledged_operations += 1
        operation.after = self._newest_operation
        count = self.acknowledged_operations
        appended = self._journal.append(
            head, operation.body or b"", mark=lambda sequence: JournalMark(self._birth, sequence, count)
        )
        operation.record, operation.sequence = appended.record, appended.record.sequence
        self._newest_operation = operation.sequence
        self._unwritten[operation.request_id] = self._last = appended.durable
        appended.durable.add_done_callback(lambda durable: self._was_written(operation, count, durable))
        self.operations.append(operation)

    def _was_written(self, operation: Operation, count: int, durable: asyncio.Future[None]) -> None:
        self._unwritten.pop(operation.request_id, None)
        if not durable.cancelled() and durable.exception() is None:
            self.acknowledged = JournalMark(self._birth, operation.sequence, count)

    async def written(self, request_id: str) -> None:
        """Until the operation is durable. Raises Stalled when that takes too long."""
        if (durable := self._unwritten.get(request_id)) is not None:
            assert self._writer is not None
            await wait_until_durable(durable, self._writer)

    async def written_at_last(self, request_id: str) -> None:
        """Until the operation is durable, however long it takes."""
        if (durable := self._unwritten.get(request_id)) is not None:
            await asyncio.shield(durable)

    async def flushed(self) -> None:
        """Until everything that was added is durable."""
        if self._last is not None:
            await asyncio.shield(self._last)

    def settle(self, operation: Operation, outcome: OperationOutcome) -> None:
        """Write down what came of it. Nobody waits for that: until it is there, a replay finds it out again."""
        operation.trace = outcome.trace()
        operation.body = operation.loss = None
        if self._journal is None:
            return
        result = outcome.result
        head = {
            "kind": "result",
            "of": operation.sequence,
            "request_id": operation.request_id,
            "form": result.form,
            "is_failure": result.is_failure,
            "digest": f"{operation.trace.digest:016x}",
            "facts": dict(outcome.facts),
        }
        appended = self._journal.append(head, result.body)
        operation.result_sequence = appended.record.sequence
        self._last = appended.durable

    def attempt(self, operation: Operation) -> None:
        """An operation of an earlier life is tried again, which may be this server's end, too."""
        operation.attempts += 1
        if self._journal is not None:
            self._loose.append(self._journal.append({"kind": "attempt", "of": operation.sequence}).record.sequence)

    async def body(self, operation: Operation) -> bytes:
        """Raises JournalDamaged."""
        if operation.body is not None:
            return operation.body
        if self._journal is None or operation.record is None:
            raise JournalDamaged(_NOWHERE)
        return await self._journal.read(operation.record)

    async def loss(self, operation: Operation) -> Json | None:
        """The definition of the custom loss that the operation uses; None: the journal does not have it, or damaged."""
        if operation.loss is not None:
            return operation.loss
        record = None if operation.loss_id is None else self._losses.before(operation.loss_id, operation.sequence)
        if self._journal is None or record is None:
            return None
        try:
            definition: Json = orjson.loads(await self._journal.read(record))
        except JournalDamaged as error:
            log.warning("custom loss damaged in journal loss=%s error=%s", operation.loss_id, error)
            return None
        return definition

    async def read_result(self, record: Record) -> Result:
        """Raises JournalDamaged."""
        assert self._journal is not None
        body = await self._journal.read(record)
        return Result(body, record.head.get("form", "json"), bool(record.head.get("is_failure")))

    def gone(self, operation: Operation) -> None:
        """Nobody will ask for the result any more."""
        operation.is_gone = True
        self._free(operation)

    def cover(self, through: int) -> None:
        """No replay will begin before ``through``, nor at it."""
        for operation in self.operations:
            if operation.sequence > through:
                break
            operation.is_covered = True
            self._free(operation)
        self.operations = [operation for operation in self.operations if not operation.is_covered]
        if self._journal is not None:
            self._journal.free(sequence for sequence in self._loose if sequence <= through)
            self._journal.free(self._losses.release(self.operations))
        self._loose = [sequence for sequence in self._loose if sequence > through]

    def needed_archives(self) -> set[str]:
        """Of checkpoints that were loaded: a replay would load them again."""
        loads = (each for each in self.operations if each.word in ("open", "load") and each.trace is not None)
        return {each.trace.facts["archive"] for each in loads if each.trace and "archive" in each.trace.facts}

    def rotate(self, head: Json) -> None:
        if self._journal is not None:
            self._losses.begin()
            counts = {"count": self.acknowledged_operations, "newest": self._newest_operation}
            self._journal.rotate({"kind": "head", **head, **counts})

    async def close(self) -> None:
        self._is_closed = True
        if self._journal is not None:
            await self._journal.close()

    async def remove(self) -> None:
        if self._journal is not None:
            await self._journal.remove()

    def _free(self, operation: Operation) -> None:
        if self._journal is None or not operation.is_covered:
            return
        self._journal.free([operation.sequence])
        if operation.is_gone and operation.result_sequence:
            self._journal.free([operation.result_sequence])


def _read_past(records: list[Record]) -> JournalContents:
    heads = [record for record in records if record.head.get("kind") == "head"]
    if not heads:
        raise JournalDamaged("the journal has no head that can be read")
    newest = heads[-1]
    past = JournalContents(
        newest.head["run"], UsedSeqIds.from_json(newest.head["numbers"]), seals=newest.head.get("seals", {})
    )
    by_sequence: dict[int, Operation] = {}
    unknown: list[Record] = []
    for record in records:
        match record.head.get("kind"):
            case "operation":
                operation = _operation_of(record)
                by_sequence[record.sequence] = operation
                if operation.seq_id is not None:
                    past.numbers.add(operation.seq_id)
            case "result" if record.damage is None:
                _take_result(past, by_sequence, record)
            case "attempt":
                past.loose.append(record.sequence)
                if (tried := by_sequence.get(record.head["of"])) is not None:
                    tried.attempts += 1
            case "head":
                pass
            case "loss":
                past.losses.append(record)
            case None:
                unknown.append(record)
            case _:
                past.loose.append(record.sequence)
    for record in unknown:
        past.loose.append(record.sequence)
        if not _may_be_a_result(record, by_sequence):
            by_sequence[record.sequence] = Operation(
                "?", {}, "", None, sequence=record.sequence, damage=record.damage or "it cannot be read"
            )
    past.has_gaps = any(_lacks_operations(earlier, later) for earlier, later in pairwise(records))
    for record in records:
        past.acknowledged_operations = max(past.acknowledged_operations, record.head.get("count", 0))
        newest_told = record.sequence if record.head.get("kind") == "operation" else record.head.get("newest", 0)
        past.newest_operation = max(past.newest_operation, newest_told)
    past.operations = [by_sequence[sequence] for sequence in sorted(by_sequence)]
    _mark_begun(past.operations)
    return past


def _lacks_operations(earlier: Record, later: Record) -> bool:
    """Whether a segment between them was trimmed. One that only had its head is not missed; damage is told apart."""
    is_damage = earlier.damage is not None and later.damage is not None
    return later.sequence > earlier.sequence + 2 and not is_damage


def _operation_of(record: Record) -> Operation:
    head = record.head
    return Operation(
        head["word"],
        head["values"],
        head["request_id"],
        head["seq_id"],
        sequence=record.sequence,
        record=record,
        damage=record.damage,
        is_old=True,
        after=head.get("after"),
    )


def _take_result(past: JournalContents, by_sequence: Mapping[int, Operation], record: Record) -> None:
    head = record.head
    operation = by_sequence.get(head["of"])
    if operation is None:  # long covered; its result is still to be fetched
        operation = Operation("?", {}, head["request_id"], None, sequence=head["of"], is_covered=True)
    operation.result_sequence = record.sequence
    operation.trace = ResultRecord(bool(head["is_failure"]), int(head["digest"], 16), head["facts"])
    past.results.append((operation, record))


def _may_be_a_result(record: Record, operations: Mapping[int, Operation]) -> bool:
    """Whether an operation before it lacks one, although a later operation has one."""
    ended = [each.sequence for each in operations.values() if each.trace is not None]
    last_ended = max(ended, default=0)
    return any(each.trace is None and each.sequence < min(record.sequence, last_ended) for each in operations.values())


def _mark_begun(operations: list[Operation]) -> None:
    """An operation without a result, behind which others have one, was under way: a save, or its result is lost."""
    has_later = False
    for operation in reversed(operations):
        has_later = has_later or operation.trace is not None
        operation.is_begun = has_later
