"""Kept losses: the custom losses in a run's journal, for passes that a replay may have to do.

A loss stands in the journal before the first pass that uses it, and once more after each recovery archive, in the
segment that begins there. So a record of a loss never keeps an older segment than its passes do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chockstone.engine.journal.journal import Record
from chockstone.engine.runs.operations import Operation

LOSS: Final = "loss"  # the kind of the record


class KeptLosses:
    def __init__(self, records: Iterable[Record] = ()) -> None:
        """``records`` are of an earlier server, oldest first; what this one writes is added to a new segment."""
        self._records = list(records)
        self._current: set[str] = set()  # in the journal since the last recovery archive, by this server

    def has(self, loss_id: str) -> bool:
        """Whether a pass that is added now can rely on a record that is there."""
        return loss_id in self._current

    def add(self, record: Record) -> None:
        self._records.append(record)
        self._current.add(record.head["loss_id"])

    def begin(self) -> None:
        """A new segment begins: what it needs is written into it."""
        self._current.clear()

    def before(self, loss_id: str, sequence: int) -> Record | None:
        """The record that the operation at ``sequence`` relies on."""
        found = (each for each in reversed(self._records) if each.sequence < sequence)
        return next((each for each in found if each.head.get("loss_id") == loss_id), None)

    def release(self, operations: Iterable[Operation]) -> list[int]:
        """Sequences of the records that none of these operations, which are all that are left, relies on."""
        uses = ((each.loss_id, each.sequence) for each in operations)
        needed = {
            record.sequence
            for loss_id, sequence in uses
            if loss_id is not None and (record := self.before(loss_id, sequence)) is not None
        }
        freed = [each for each in self._records if each.sequence not in needed]
        self._records = [each for each in self._records if each.sequence in needed]
        self._current &= {each.head.get("loss_id") for each in self._records}
        return [each.sequence for each in freed]
