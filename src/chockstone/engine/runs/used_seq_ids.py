"""Used seq_ids of a run, so that a retried request is recognised.

Clients may skip numbers, and requests may arrive out of order. The last few thousand are kept one by one; every older
number counts as used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from chockstone.wire.failures import BadRequest

REMEMBERED: Final = 4096  # seq_ids whose request id a repeat still gets


class UsedSeqIds:
    def __init__(self) -> None:
        self._seen: OrderedDict[int, None] = OrderedDict()  # in the order they came
        self._forgotten_below = -1  # every number up to this one counts as used

    def has(self, seq_id: int) -> bool:
        """Whether it was used. Raises BadRequest if that was too long ago to tell."""
        if seq_id in self._seen:
            return True
        if seq_id <= self._forgotten_below:
            raise BadRequest(
                f"seq_id {seq_id} is too old: this run is at {next(reversed(self._seen))}. "
                f"Number requests upwards; the last {REMEMBERED} are remembered for retries."
            )
        return False

    def add(self, seq_id: int) -> None:
        self._seen[seq_id] = None
        if len(self._seen) > REMEMBERED:
            self._forgotten_below = max(self._forgotten_below, self._seen.popitem(last=False)[0])

    def to_json(self) -> dict[str, Any]:
        return {"forgotten_below": self._forgotten_below, "spans": [list(span) for span in _spans(self._seen)]}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> UsedSeqIds:
        numbers = cls()
        numbers._forgotten_below = int(found["forgotten_below"])
        for first, last in found["spans"]:
            numbers._seen.update(dict.fromkeys(range(first, last + 1)))
        return numbers


def _spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, from the first to the last of each."""
    spans: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return spans
