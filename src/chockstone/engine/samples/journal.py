"""The sample journal: sampling requests and their results, until no client can ask for them.

Its records are of these kinds:

    operation  a request
    result     of an operation; the last one counts
    attempt    an operation is about to run again; ``deaths`` workers died while it ran
    spared     an attempt ended because its server shut down, so it is not the cause of a crash
    gone       no client will ask for the results of these operations again
    kept       an operation with its result, written again so that old segments can be deleted
    head       the operations before ``through`` that are still needed, the ``life`` of the server that wrote it, and
               ``birth`` and ``first_life`` of the journal

A result also stays until the usage has counted it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chockstone.engine.futures import Result
from chockstone.engine.journal.journal import Appended, Journal, JournalDamaged, JournalWriter, Record
from chockstone.engine.journal.writer import wait_until_durable
from chockstone.engine.runs.operations import OperationOutcome
from chockstone.engine.samples.requests import SampledTokens, SampleFacts

log = logging.getLogger(__name__)
ROTATE_BYTES: Final = 16 << 20
KEEP_BYTES: Final = 128 << 20  # written at least before unfetched results are written again
_LIVES_SINCE: Final = 1_735_689_600  # 2025: lives count from here, so that cursors fit into 63 bits
_LIVES_PER_SECOND: Final = 32  # no server starts, loses its journal and is started again in less time
_RECORD_BYTES: Final = 512  # about the size of a record without its body


@dataclass(slots=True)
class FoundSample:
    """A request of an earlier server."""

    facts: SampleFacts
    operation: Record
    result: Record | None = None
    runs: int = 1  # that did not end; the first counts, since its start is not recorded
    deaths: int = 0  # of workers
    sequences: list[int] = field(default_factory=list)

    @property
    def server_deaths(self) -> int:
        return self.runs - self.deaths


@dataclass(slots=True)
class _Entry:
    facts: SampleFacts
    sequences: list[int]  # of its records; the first is the one that others refer to
    size_bytes: int
    outcome: OperationOutcome | None = None


async def _count_nothing(_: str) -> int:
    return 0


class SampleJournal:
    """Requests are identified by their ids. Call ``open`` first, once."""

    def __init__(
        self,
        directory: Path,
        writer: JournalWriter,
        *,
        rotate_bytes: int = ROTATE_BYTES,
        keep_bytes: int = KEEP_BYTES,
        usage_counted: Callable[[str], Awaitable[int]] = _count_nothing,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``now`` is in seconds since 1970. ``usage_counted`` gives the sequence up to which the usage has counted the
        journal of this birth."""
        self._directory = directory
        self._writer = writer
        self._rotate_bytes = rotate_bytes
        self._keep_bytes = keep_bytes
        self._now = now
        self.life = 0  # above that of every server before that wrote here, and of every journal made earlier
        self.first_life = 0  # of the servers that wrote here since something was lost
        self.birth = secrets.token_hex(4)  # of the journal: one that is made after it was lost has another
        self.recorded: dict[int, SampledTokens] = {}  # by sequence of the result: those found by ``open``
        self._uncounted: set[int] = set()  # sequences of results that the usage may lack
        self._unneeded: set[int] = set()  # those among them that nothing else needs
        self._has_head = False
        self._usage_counted = usage_counted
        self._opened: Journal | None = None
        self._is_read = False
        self._is_closed = False
        self._entries: dict[str, _Entry] = {}
        self._live_bytes = 0
        self._segment_bytes = 0  # since the last rotation
        self._grown_bytes = 0  # since results were rewritten

    async def open(self) -> list[FoundSample]:
        """The requests of earlier servers that clients may ask for, oldest first. Raises JournalError."""
        self._opened = journal = await Journal.open(self._directory, self._writer)
        by_request = {one.facts.request_id: one for one in _read_requests(journal.records)}
        found = list(by_request.values())
        for one in found:
            size = one.operation.body_size + (one.result.body_size if one.result else 0)
            self._enter(_Entry(one.facts, one.sequences, size + _RECORD_BYTES))
        if journal.records:
            births = [record.head["birth"] for record in journal.records if "birth" in record.head]
            self.birth = births[-1] if births else self.birth
            self.recorded = _read_recorded(journal.records)
            self._uncounted.update(self.recorded)
            self._has_head = True
            has_losses = any(not record.head for record in journal.records)  # damaged: their contents are unknown
            if (counted := await self._usage_counted(self.birth)) >= journal.next_sequence:
                journal.skip_to(counted + 1)  # the end is lost, as by a power failure; its numbers are not used again
                has_losses = True
            self.life = max(1 + max(record.head.get("life", 0) for record in journal.records), self._clock_life())
            self.first_life = max(record.head.get("first_life", 0) for record in journal.records)  # 0: earlier versions
            if has_losses:
                self.first_life = self.life
            stale = {record.sequence for record in journal.records}.difference(*(one.sequences for one in found))
            journal.rotate(self._head())
            self._free_after(self._append({"kind": "gone", "of": []}, held=False), stale)
        else:
            self.life = self.first_life = self._clock_life()
        journal.records.clear()
        self._is_read = True
        return found

    def add(self, facts: SampleFacts, body: bytes) -> asyncio.Future[None]:
        """Append a request. The future is done when it is durable; ``wait`` waits for that with a time limit."""
        if not self._has_head:
            self._journal.rotate(self._head())
            self._has_head = True
        self._tidy()
        appended = self._append({"kind": "operation", **facts.to_json()}, body)
        self._enter(_Entry(facts, [appended.record.sequence], len(body) + _RECORD_BYTES))
        return appended.durable

    def attempt(self, request_id: str, *, deaths: int) -> asyncio.Future[None]:
        return self._add_to(request_id, {"kind": "attempt", "deaths": deaths})

    def spare(self, request_id: str) -> None:
        self._add_to(request_id, {"kind": "spared"})

    def settle(
        self, request_id: str, outcome: OperationOutcome, *, on_recorded: Callable[[int], None] | None = None
    ) -> asyncio.Future[None]:
        """Append the result. ``on_recorded`` is called with its sequence when it is durable, in the order of sequences.

        Then the result stays until ``counted`` is called with the sequence.
        """
        entry = self._entries[request_id]
        entry.outcome = outcome
        durable = self._add_to(request_id, {"kind": "result", **_describe(outcome)}, outcome.result.body)
        if on_recorded is not None:
            sequence = entry.sequences[-1]
            self._uncounted.add(sequence)
            durable.add_done_callback(lambda done: on_recorded(sequence) if _is_written(done) else None)
        return durable

    def counted(self, sequence: int) -> None:
        """The usage has the result at this sequence."""
        self._uncounted.discard(sequence)
        if sequence in self._unneeded:
            self._unneeded.discard(sequence)
            self._journal.free([sequence])

    def gone(self, request_id: str) -> None:
        """No client will ask for it again."""
        if self._is_closed or (entry := self._entries.pop(request_id, None)) is None:
            return
        self._live_bytes -= entry.size_bytes
        mark = self._append({"kind": "gone", "of": entry.sequences[:1]}, held=False)
        self._free_after(mark, entry.sequences)

    async def wait(self, durable: asyncio.Future[None]) -> None:
        """Raises Stalled."""
        await wait_until_durable(durable, self._writer)

    async def read_body(self, found: FoundSample) -> bytes:
        """Raises JournalDamaged."""
        return await self._journal.read(found.operation)

    async def read_result(self, found: FoundSample) -> Result | None:
        """None: there is none, or it cannot be trusted."""
        if found.result is None:
            return None
        try:
            body = await self._journal.read(found.result)
        except JournalDamaged as error:
            log.warning("result lost request=%s error=%s", found.facts.request_id, error)
            return None
        head = found.result.head
        result = Result(body, head["form"], head["is_failure"])
        self._entries[found.facts.request_id].outcome = OperationOutcome(result, head["facts"])
        return result

    async def close(self) -> None:
        """Write what was added, then close. Nothing may be added later."""
        self._is_closed = True
        if self._opened is not None:
            await self._opened.close()

    @property
    def is_open(self) -> bool:
        """Whether ``life`` and ``first_life`` are known."""
        return self._is_read

    @property
    def _journal(self) -> Journal:
        assert self._opened is not None, "open comes first"
        return self._opened

    def _enter(self, entry: _Entry) -> None:
        self._entries[entry.facts.request_id] = entry
        self._live_bytes += entry.size_bytes

    def _add_to(self, request_id: str, head: Mapping[str, Any], body: bytes = b"") -> asyncio.Future[None]:
        entry = self._entries[request_id]
        appended = self._append({**head, "of": entry.sequences[0]}, body)
        entry.sequences.append(appended.record.sequence)
        entry.size_bytes += len(body) + _RECORD_BYTES
        self._live_bytes += len(body) + _RECORD_BYTES
        return appended.durable

    def _append(self, head: Mapping[str, Any], body: bytes = b"", *, held: bool = True) -> Appended:
        self._segment_bytes += len(body) + _RECORD_BYTES
        self._grown_bytes += len(body) + _RECORD_BYTES
        return self._journal.append(head, body, held=held)

    def _tidy(self) -> None:
        """Rotate. Write unfetched results again if many segments are kept only for them."""
        if self._segment_bytes < self._rotate_bytes:
            return
        self._journal.rotate(self._head())
        self._segment_bytes = 0
        bound = max(self._keep_bytes, 3 * self._live_bytes)
        if min(self._grown_bytes, self._journal.size_bytes) >= bound:
            self._grown_bytes = 0
            for entry in self._entries.values():
                if entry.outcome is not None:
                    self._rewrite(entry, entry.outcome)

    def _rewrite(self, entry: _Entry, outcome: OperationOutcome) -> None:
        kept = self._append({"kind": "kept", **entry.facts.to_json(), **_describe(outcome)}, outcome.result.body)
        self._free_after(kept, entry.sequences)
        entry.sequences = [kept.record.sequence]
        self._live_bytes -= entry.size_bytes
        entry.size_bytes = len(outcome.result.body) + _RECORD_BYTES
        self._live_bytes += entry.size_bytes

    def _head(self) -> Mapping[str, Any]:
        live = [entry.sequences[0] for entry in self._entries.values()]
        through = self._journal.next_sequence
        lives = {"life": self.life, "first_life": self.first_life}
        return {"kind": "head", **lives, "birth": self.birth, "through": through, "live": live}

    def _clock_life(self) -> int:
        return max(0, int((self._now() - _LIVES_SINCE) * _LIVES_PER_SECOND))

    def _free_after(self, appended: Appended, sequences: Iterable[int]) -> None:
        """Free them once ``appended`` is durable: a crash in between must not leave half of them."""
        journal, unneeded = self._journal, set(sequences)

        def free(durable: asyncio.Future[None]) -> None:
            if _is_written(durable):
                self._unneeded |= unneeded & self._uncounted
                journal.free(unneeded - self._uncounted)

        appended.durable.add_done_callback(free)


def _describe(outcome: OperationOutcome) -> Mapping[str, Any]:
    return {"form": outcome.result.form, "is_failure": outcome.result.is_failure, "facts": dict(outcome.facts)}


def _is_written(durable: asyncio.Future[None]) -> bool:
    return not durable.cancelled() and durable.exception() is None


def _read_recorded(records: Iterable[Record]) -> dict[int, SampledTokens]:
    """What the results used, also of requests that no client will ask for again."""
    found: dict[int, SampledTokens] = {}
    for record in records:
        if record.head.get("kind") == "result" and (used := SampledTokens.from_json(record.head["facts"])) is not None:
            found[record.sequence] = used
    return found


def _read_requests(records: Iterable[Record]) -> list[FoundSample]:
    found: dict[int, FoundSample] = {}
    for record in records:
        try:
            found = _read_one(found, record)
        except (KeyError, TypeError, ValueError) as error:  # of another version
            log.warning("sample record skipped sequence=%d error=%r", record.sequence, error)
    return list(found.values())


def _read_one(found: dict[int, FoundSample], record: Record) -> dict[int, FoundSample]:
    head = record.head
    match head.get("kind"):
        case "operation":
            found[record.sequence] = FoundSample(SampleFacts.from_json(head), record, sequences=[record.sequence])
        case "kept":
            found[record.sequence] = FoundSample(
                SampleFacts.from_json(head), record, record, sequences=[record.sequence]
            )
        case "head":
            live = set(head["live"])
            return {at: one for at, one in found.items() if at >= head["through"] or at in live}
        case "gone":
            for at in head["of"]:
                found.pop(at, None)
        case _ if (one := found.get(head.get("of", -1))) is not None:
            _learn(one, record)
    return found


def _learn(one: FoundSample, record: Record) -> None:
    one.sequences.append(record.sequence)
    match record.head["kind"]:
        case "result" if record.damage is None:
            one.result = record
        case "attempt":
            one.runs += 1
            one.deaths = record.head["deaths"]
        case "spared":
            one.runs -= 1
