"""A run's journal: the operations of the run and their results, on disk and in memory.

Operations are kept since the older of the run's two recovery archives, where a replay may start. A result also stays
on disk until no client can ask for it.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson

from chockstone.engine.futures import Result
from chockstone.engine.journal.journal import Journal, JournalDamaged, JournalWriter, Record
from chockstone.engine.journal.mark_file import JournalMark, MarkFile
from chockstone.engine.journal.writer import wait_until_durable
from chockstone.engine.runs.commands import ForwardBackward, Load, OpenRun
from chockstone.engine.runs.journal_contents import JournalContents, read_contents
from chockstone.engine.runs.operations import Operation, OperationOutcome, OperationRequest
from chockstone.engine.storage.archive_names import run_of_stored, stored_session
from chockstone.engine.storage.leftover_files import journal_bytes, list_journals
from chockstone.engine.usage import TrainedTotal

log = logging.getLogger(__name__)
Json = Mapping[str, Any]  # Any: plain JSON
LOSS: Final = "loss"  # kind of the records that hold custom losses
_NO_JOURNAL: Final = "there is no journal"


class KeptLosses:
    """The custom losses in a run's journal, for passes that a replay may execute.

    A loss is written before the first pass that uses it, and again in the segment after each recovery archive. So a
    record of a loss never keeps an older segment on disk than its passes do.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        """``records``: those of earlier servers, oldest first. This server starts a new segment."""
        self._records = list(records)
        self._current: set[str] = set()  # loss ids that this server has written since the last recovery archive

    def has(self, loss_id: str) -> bool:
        """Whether a pass that is added now can rely on a record in its segment."""
        return loss_id in self._current

    def add(self, record: Record) -> None:
        self._records.append(record)
        self._current.add(record.head["loss_id"])

    def begin_segment(self) -> None:
        self._current.clear()

    def before(self, loss_id: str, sequence: int) -> Record | None:
        """The record that the operation at ``sequence`` relies on."""
        found = (each for each in reversed(self._records) if each.sequence < sequence)
        return next((each for each in found if each.head.get("loss_id") == loss_id), None)

    def release(self, operations: Iterable[Operation]) -> list[int]:
        """Drop the records that none of the remaining operations relies on, and return their sequences."""
        uses = ((_loss_id(each), each.sequence) for each in operations)
        needed = {
            record.sequence
            for loss_id, sequence in uses
            if loss_id is not None and (record := self.before(loss_id, sequence)) is not None
        }
        freed = [each for each in self._records if each.sequence not in needed]
        self._records = [each for each in self._records if each.sequence in needed]
        self._current &= {each.head.get("loss_id") for each in self._records}
        return [each.sequence for each in freed]


def _loss_id(operation: Operation) -> str | None:
    command = operation.command
    return command.loss_id if isinstance(command, ForwardBackward) else None


class RunJournal:
    """Without a journal on disk nothing outlives this process."""

    def __init__(self, journal: Journal | None, writer: JournalWriter | None) -> None:
        self._journal = journal
        self._writer = writer
        self.operations: list[Operation] = []  # oldest first
        self._unwritten: dict[str, asyncio.Future[None]] = {}  # by request id
        self._last: asyncio.Future[None] | None = None  # done when all so far is durable
        self._sequence = 0  # without a journal
        self._loose: list[int] = []  # sequences of records that are neither operations nor results
        self._losses = KeptLosses()
        self._has_gaps = False
        self._is_closed = False
        self._birth = ""
        self._newest_operation = 0
        self.acknowledged_operations = 0  # since the run was made
        self.trained = TrainedTotal()
        self.acknowledged: JournalMark | None = None  # the last operation that this server acknowledged

    @classmethod
    async def create(
        cls, directory: Path, writer: JournalWriter, head: Json, mark_file: MarkFile | None = None
    ) -> RunJournal:
        """Replaces a journal of that name, whose run was never opened. Raises JournalError, OSError."""
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
        contents = read_contents(journal.records)
        made._birth = contents.facts.get("birth", "")
        made._newest_operation = contents.newest_operation
        made.acknowledged_operations = contents.acknowledged_operations
        made.trained = max(contents.trained, key=lambda each: each.tokens, default=made.trained)
        made.operations = contents.operations
        made._loose = contents.loose
        made._losses = KeptLosses(contents.losses)
        made._has_gaps = contents.has_gaps
        journal.records.clear()
        return made, contents

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

    def continue_after(self, loss: JournalMark, *, archived: int) -> None:
        """The end of the journal is lost; continue without it. Sequences in recovery archives are not used again."""
        assert self._journal is not None
        self.acknowledged_operations = loss.operations
        if archived >= self._journal.next_sequence:
            self._journal.skip_to(archived + 1)
            self._newest_operation = archived
            self._has_gaps = True
            for operation in self.operations:
                if operation.sequence <= archived:  # the archive holds it, also if its result is lost
                    operation.begin()

    def adopt_trained(self, tokens: int, *, through: int) -> None:
        """The usage has counted so many tokens already, also if the results of the last passes are lost."""
        if tokens > self.trained.tokens:
            self.trained = TrainedTotal(tokens, min(through, self.next_sequence - 1), self.trained.at)

    def first_of_all(self) -> Operation | None:
        """The opening of the run, if the journal holds everything since."""
        first = self.operations[0] if self.operations else None
        return None if first is None or not isinstance(first.command, OpenRun) or self._has_gaps else first

    def add(self, request: OperationRequest) -> Operation:
        """Append the request. ``written`` waits until it is durable."""
        if self._journal is None:
            self._sequence += 1
            return Operation(replace(request, sequence=self._sequence))
        command = request.command
        loss_id = command.loss_id if isinstance(command, ForwardBackward) else None
        if loss_id is not None and request.loss is not None and not self._losses.has(loss_id):
            self._losses.add(
                self._journal.append({"kind": LOSS, "loss_id": loss_id}, orjson.dumps(request.loss)).record
            )
        self.acknowledged_operations += 1
        count, after = self.acknowledged_operations, self._newest_operation
        head = {
            "kind": "operation",
            "word": command.name,
            "seq_id": request.seq_id,
            "request_id": request.request_id,
            "values": command.to_json(),
            "count": count,
            "after": after,
        }
        if origin := request.origin.to_json():
            head["origin"] = origin
        appended = self._journal.append(
            head, request.body or b"", mark=lambda sequence: JournalMark(self._birth, sequence, count)
        )
        record = appended.record
        operation = Operation(replace(request, sequence=record.sequence, after=after, record=record))
        self._newest_operation = record.sequence
        self._unwritten[request.request_id] = self._last = appended.durable
        appended.durable.add_done_callback(lambda durable: self._was_written(operation, count, durable))
        self.operations.append(operation)
        return operation

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

    def settle(self, operation: Operation, outcome: OperationOutcome) -> int:
        """Append the result. It need not be durable before the client gets it: a replay computes it again.

        Returns how many trained tokens that adds to the run's; 0 if they were counted before.
        """
        record, result = outcome.record(), outcome.result
        operation.end(record)
        new_tokens = outcome.tokens if operation.sequence > self.trained.through else 0
        if new_tokens:
            self.trained = TrainedTotal(self.trained.tokens + new_tokens, operation.sequence, outcome.ended_at)
        if self._journal is None:
            return new_tokens
        head = {
            "kind": "result",
            "of": operation.sequence,
            "request_id": operation.request_id,
            "form": result.form,
            "is_failure": result.is_failure,
            "digest": f"{record.digest:016x}",
            "facts": dict(outcome.facts),
        }
        if outcome.tokens:
            head["trained"] = self.trained.to_json()
        if outcome.measured is not None:
            head["measured"] = outcome.measured.to_json()
        appended = self._journal.append(head, result.body)
        operation.result_sequence = appended.record.sequence
        self._last = appended.durable
        return new_tokens

    def attempt(self, operation: Operation) -> None:
        """Record that an operation of an earlier server is tried again, in case this server dies of it, too."""
        operation.attempts += 1
        if self._journal is not None:
            self._loose.append(self._journal.append({"kind": "attempt", "of": operation.sequence}).record.sequence)

    async def body(self, operation: Operation) -> bytes:
        """Raises JournalDamaged."""
        request = operation.request
        if request.body is not None:
            return request.body
        if self._journal is None or request.record is None:
            raise JournalDamaged(_NO_JOURNAL)
        return await self._journal.read(request.record)

    async def loss(self, operation: Operation) -> Json | None:
        """Definition of the custom loss that the operation uses; None: the journal lacks it, or it is damaged."""
        if operation.request.loss is not None:
            return operation.request.loss
        loss_id = _loss_id(operation)
        record = None if loss_id is None else self._losses.before(loss_id, operation.sequence)
        if self._journal is None or record is None:
            return None
        try:
            definition: Json = orjson.loads(await self._journal.read(record))
        except JournalDamaged as error:
            log.warning("custom loss damaged in journal loss=%s error=%s", loss_id, error)
            return None
        return definition

    async def read_result(self, record: Record) -> Result:
        """Raises JournalDamaged."""
        assert self._journal is not None
        body = await self._journal.read(record)
        return Result(body, record.head.get("form", "json"), bool(record.head.get("is_failure")))

    def gone(self, operation: Operation) -> None:
        """No client will ask for the result again."""
        operation.is_gone = True
        self._free(operation)

    def cover(self, through: int) -> None:
        """No replay will start at ``through`` or before it."""
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
        """Checkpoints that a replay would load again."""
        loads = (each.outcome for each in self.operations if isinstance(each.command, OpenRun | Load))
        return {each.facts["archive"] for each in loads if each is not None and "archive" in each.facts}

    def rotate(self, head: Json) -> None:
        if self._journal is not None:
            self._losses.begin_segment()
            counts: dict[str, Any] = {"count": self.acknowledged_operations, "newest": self._newest_operation}
            if self.trained.tokens:
                counts["trained"] = self.trained.to_json()
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


class RunJournals:
    """The journals of all runs, below one directory. Without a writer no journals are kept."""

    def __init__(self, directory: Path, writer: JournalWriter | None, mark_file: Callable[[str], MarkFile]) -> None:
        """``mark_file`` gives the mark file of a run."""
        self._directory = directory
        self._writer = writer
        self._mark_file = mark_file

    @property
    def are_kept(self) -> bool:
        return self._writer is not None

    async def exists(self, run_id: str) -> bool:
        return await asyncio.to_thread(self._path_of(run_id).is_dir)

    async def list_runs(self, *, min_age_seconds: float = 0.0) -> list[str]:
        """The runs whose journal got no new file for this long."""
        return await asyncio.to_thread(_list_runs, self._directory, min_age_seconds)

    async def sizes(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Bytes on disk of the journals of these runs; 0 of a run that has none."""
        paths = {run_id: self._path_of(run_id) for run_id in run_ids}
        return await asyncio.to_thread(lambda: {run_id: journal_bytes(path) for run_id, path in paths.items()})

    async def create(self, run_id: str, head: Json) -> RunJournal:
        """Raises JournalError, OSError."""
        if self._writer is None:
            return RunJournal(None, None)
        return await RunJournal.create(self._path_of(run_id), self._writer, head, self._mark_file(run_id))

    async def reopen(self, run_id: str, *, is_marked: bool = True) -> tuple[RunJournal, JournalContents]:
        """``is_marked``: what is added moves the run's mark. Raises JournalError when it cannot be read at all."""
        assert self._writer is not None
        mark_file = self._mark_file(run_id) if is_marked else None
        return await RunJournal.reopen(self._path_of(run_id), self._writer, mark_file)

    async def read(self, run_id: str) -> tuple[RunJournal, JournalContents]:
        """Only to look: it is closed on return. Raises JournalError."""
        journal, contents = await self.reopen(run_id, is_marked=False)
        await journal.close()
        return journal, contents

    async def delete(self, run_id: str) -> bool:
        """Whether the journal is gone."""
        await asyncio.to_thread(shutil.rmtree, self._path_of(run_id), ignore_errors=True)
        return not await self.exists(run_id)

    def _path_of(self, run_id: str) -> Path:
        return self._directory / stored_session(run_id)


def _list_runs(directory: Path, min_age_seconds: float) -> list[str]:
    horizon = time.time() - min_age_seconds if min_age_seconds else float("inf")
    found = []
    for path in list_journals(directory):
        with suppress(FileNotFoundError):  # it was removed a moment ago
            if path.stat().st_mtime <= horizon and (run_id := run_of_stored(path.name)) is not None:
                found.append(run_id)
    return found
