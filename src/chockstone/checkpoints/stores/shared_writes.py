"""Shared writes: tickets and receipts of several processes that write one archive.

The owner begins the archive and gives out a ticket. Other processes use the ticket to write ranges of the archive, and
return a receipt for them. The owner settles the receipts, and commits only if all ranges together cover the archive
without a gap. Tickets and receipts are JSON and are checked on arrival.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from chockstone.checkpoints.errors import StoreError

_MAX_PLACE: Final = 4096  # far above any file name or upload id


@dataclass(frozen=True, slots=True)
class Ticket:
    """How to find an archive that is being written. ``place`` means something to its store alone."""

    archive: str
    size: int
    place: str

    def encode(self) -> str:
        return json.dumps({"archive": self.archive, "size": self.size, "place": self.place})

    @classmethod
    def decode(cls, text: str, *, archive: str, size: int) -> Ticket:
        """Raises StoreError unless it is one for this archive, planned with this many bytes."""
        said = _decoded(text, {"archive": str, "size": int, "place": str})
        if said is None or len(said["place"]) > _MAX_PLACE:
            raise StoreError(f"cannot join the writing of {archive}: {text[:200]!r} is no ticket")
        if (said["archive"], said["size"]) != (archive, size):
            raise StoreError(
                f"cannot join the writing of {archive} with {size} bytes: the ticket is for {said['archive'][:300]} "
                f"with {said['size']}; all processes must save the same state to the same store"
            )
        return cls(archive, size, said["place"])


@dataclass(frozen=True, slots=True)
class PartWritten:
    """A range of an archive that is where it belongs; S3 gave ``etag`` for it."""

    start: int
    end: int
    etag: str = ""


@dataclass(frozen=True, slots=True)
class PartReceipt:
    """What one process wrote to the archive of a ticket."""

    place: str
    ranges: Sequence[PartWritten]

    def encode(self) -> str:
        return json.dumps({"place": self.place, "ranges": [(one.start, one.end, one.etag) for one in self.ranges]})

    @classmethod
    def decode(cls, text: str, *, archive: str, size: int, place: str) -> PartReceipt:
        """Raises StoreError unless it is one for that place, of ranges within the archive."""
        said = _decoded(text, {"place": str, "ranges": list})
        ranges = None if said is None else [_written(one, size) for one in said["ranges"]]
        if said is None or ranges is None or None in ranges:
            raise StoreError(f"cannot commit {archive}: {text[:200]!r} is no receipt for a part of its {size} bytes")
        if said["place"] != place:
            raise StoreError(f"cannot commit {archive}: a receipt is for another write, {said['place'][:300]!r}")
        return cls(place, [one for one in ranges if one is not None])


def _decoded(text: str, fields: dict[str, type]) -> dict[str, Any] | None:  # Any: of the types just checked
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or said.keys() != fields.keys():
        return None
    return said if all(type(said[name]) is kind for name, kind in fields.items()) else None


def _written(said: object, size: int) -> PartWritten | None:
    if not (isinstance(said, list) and [type(value) for value in said] == [int, int, str]):
        return None
    start, end, etag = said
    return PartWritten(start, end, etag) if 0 <= start < end <= size else None


class Extents:
    """Which bytes of an archive have been written. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: list[int] = []  # of stretches that neither touch nor overlap, in order
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> bool:
        """Whether none of it was there before."""
        if start == end:
            return True
        with self._lock:
            first, behind = bisect_left(self._ends, start), bisect_right(self._starts, end)
            touched = list(zip(self._starts[first:behind], self._ends[first:behind], strict=True))
            joined_start = min([start, *(known for known, _ in touched)])
            joined_end = max([end, *(known for _, known in touched)])
            self._starts[first:behind] = [joined_start]
            self._ends[first:behind] = [joined_end]
        return all(known_end <= start or known_start >= end for known_start, known_end in touched)

    def ranges(self) -> list[PartWritten]:
        with self._lock:
            return [PartWritten(start, end) for start, end in zip(self._starts, self._ends, strict=True)]

    def missing(self, size: int) -> int:
        """How many of the first ``size`` bytes are not there."""
        return size - sum(one.end - one.start for one in self.ranges())


def too_long(archive: str, size: int) -> StoreError:
    return StoreError(f"{archive} was planned with {size} bytes and got more; begin again")


def incomplete(archive: str, missing_bytes: int) -> StoreError:
    return StoreError(f"cannot commit {archive}: {missing_bytes} bytes of it were never written; save it again")


def written_twice(archive: str, start: int, end: int) -> StoreError:
    return StoreError(f"cannot commit {archive}: two processes wrote its bytes {start} to {end}; save it again")


def cannot_share(url: str) -> StoreError:
    return StoreError(
        f"several processes can save to directories and s3:// only: {url} takes an archive in one request; save to "
        "one of those, or let one process save"
    )
