"""Journal contents: the operations and results that the records of a run's journal tell of.

Damaged records count as operations, unless they can only be results: a recovery must not pass over an operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from chockstone.engine.history.points import Measurement
from chockstone.engine.journal.journal import JournalDamaged, Record
from chockstone.engine.runs.commands import CloseRun, OpenRun, UnknownCommand, read_command
from chockstone.engine.runs.operations import Operation, OperationRequest, ResultRecord
from chockstone.engine.runs.used_seq_ids import UsedSeqIds
from chockstone.engine.usage import TrainedTotal
from chockstone.telemetry.origin import RequestOrigin

Json = Mapping[str, Any]  # Any: plain JSON


@dataclass(slots=True)
class JournalContents:
    """What the journal of an earlier server holds."""

    facts: Json  # of the run
    used_seq_ids: UsedSeqIds
    operations: list[Operation] = field(default_factory=list)
    results: list[tuple[Operation, Record]] = field(default_factory=list)  # that clients may still ask for
    losses: list[Record] = field(default_factory=list)  # custom losses that operations use
    loose: list[int] = field(default_factory=list)  # sequences of all other records
    has_gaps: bool = False  # records that recovery archives cover were deleted
    seals: Mapping[str, str] = field(default_factory=dict)  # of recovery archives, by name
    progress: Json | None = None  # of the run when the newest segment was begun; earlier versions did not record it
    acknowledged_operations: int = 0  # as far as records tell: earlier versions did not count them
    newest_operation: int = 0  # its sequence; the record itself may be deleted
    trained: list[TrainedTotal] = field(default_factory=list)  # oldest first; earlier versions did not record it
    measured: list[tuple[int, Measurement]] = field(default_factory=list)  # by sequence of the operation; the same

    @property
    def is_worth_recovering(self) -> bool:
        """Whether the run was opened, as far as is known, and not closed."""
        if not self.operations or isinstance(self.operations[-1].command, CloseRun):
            return False
        first = self.operations[0]
        return not isinstance(first.command, OpenRun) or first.outcome is None or not first.outcome.is_failure


def read_contents(records: list[Record]) -> JournalContents:
    """Raises JournalDamaged if no head can be read."""
    heads = [record for record in records if record.head.get("kind") == "head"]
    if not heads:
        raise JournalDamaged("the journal has no head that can be read")
    newest = heads[-1]
    contents = JournalContents(
        newest.head["run"], UsedSeqIds.from_json(newest.head["numbers"]), seals=newest.head.get("seals", {})
    )
    contents.progress = newest.head.get("progress")
    by_sequence: dict[int, Operation] = {}
    unreadable: list[Record] = []
    for record in records:
        match record.head.get("kind"):
            case "operation":
                by_sequence[record.sequence] = operation = _read_operation(record)
                if operation.request.seq_id is not None:
                    contents.used_seq_ids.add(operation.request.seq_id)
            case "result" if record.damage is None:
                _read_result(contents, by_sequence, record)
            case "attempt":
                contents.loose.append(record.sequence)
                if (tried := by_sequence.get(record.head["of"])) is not None:
                    tried.attempts += 1
            case "head":
                pass
            case "loss":
                contents.losses.append(record)
            case None:
                unreadable.append(record)
            case _:
                contents.loose.append(record.sequence)
    for record in unreadable:
        contents.loose.append(record.sequence)
        if not _may_be_a_result(record, by_sequence):
            damage = record.damage or "it cannot be read"
            by_sequence[record.sequence] = Operation(
                OperationRequest(UnknownCommand("?"), "", sequence=record.sequence, damage=damage)
            )
    contents.has_gaps = any(_lacks_operations(earlier, later) for earlier, later in pairwise(records))
    for record in records:
        contents.acknowledged_operations = max(contents.acknowledged_operations, record.head.get("count", 0))
        newest_told = record.sequence if record.head.get("kind") == "operation" else record.head.get("newest", 0)
        contents.newest_operation = max(contents.newest_operation, newest_told)
        if "trained" in record.head:
            contents.trained.append(TrainedTotal.from_json(record.head["trained"]))
    contents.operations = [by_sequence[sequence] for sequence in sorted(by_sequence)]
    _mark_begun(contents.operations)
    return contents


def _lacks_operations(earlier: Record, later: Record) -> bool:
    """Whether a segment between them was deleted. A segment of a head alone does not count, nor does damage."""
    is_damage = earlier.damage is not None and later.damage is not None
    return later.sequence > earlier.sequence + 2 and not is_damage


def _read_operation(record: Record) -> Operation:
    head = record.head
    return Operation(
        OperationRequest(
            read_command(head["word"], head["values"]),
            head["request_id"],
            head["seq_id"],
            sequence=record.sequence,
            after=head.get("after"),
            record=record,
            damage=record.damage,
            is_old=True,
            origin=RequestOrigin.from_json(head.get("origin")),  # earlier versions did not record it
        )
    )


def _read_result(contents: JournalContents, by_sequence: Mapping[int, Operation], record: Record) -> None:
    head = record.head
    operation = by_sequence.get(head["of"])
    if operation is None:  # its record is deleted, and clients may still ask for its result
        request = OperationRequest(UnknownCommand("?"), head["request_id"], sequence=head["of"])
        operation = Operation(request, is_covered=True)
    outcome = ResultRecord(bool(head["is_failure"]), int(head["digest"], 16), head["facts"])
    operation.end(outcome)
    operation.result_sequence = record.sequence
    contents.results.append((operation, record))
    if "measured" in head:
        with suppress(ValueError):  # it costs a point of the history
            contents.measured.append((operation.sequence, Measurement.from_json(head["measured"])))


def _may_be_a_result(record: Record, operations: Mapping[int, Operation]) -> bool:
    """Whether an earlier operation lacks a result although a later operation has one."""
    ended = [each.sequence for each in operations.values() if each.outcome is not None]
    last_ended = max(ended, default=0)
    return any(
        each.outcome is None and each.sequence < min(record.sequence, last_ended) for each in operations.values()
    )


def _mark_begun(operations: list[Operation]) -> None:
    """An operation without a result before one with a result was begun: a save, or its result is lost."""
    has_later = False
    for operation in reversed(operations):
        has_later = has_later or operation.outcome is not None
        operation.is_begun = has_later
