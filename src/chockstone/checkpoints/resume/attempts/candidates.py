"""Candidates: places that may hold something to resume from, each once, newest first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from chockstone.checkpoints.resume.attempts.places import normalise

MAX_CANDIDATES: Final = 1000  # that one resume looks at


class Origin(StrEnum):
    OWN = "own"  # this attempt's place, after a restart in place
    PLATFORM = "platform"  # the previous attempt according to the platform, which may be wrong
    LINEAGE = "lineage"  # a candidate of an earlier attempt, from its claim
    DERIVED = "derived"  # computed from the layout of this attempt's path
    USER = "user"  # named by the user


@dataclass(frozen=True, slots=True)
class Candidate:
    uri: str
    origin: Origin
    attempt: int | None = None
    may_be_foreign: bool = False  # checkpoints of another chain are accepted


def ranked(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return each place once, newest first: our own, the platform's, attempts by number, then the rest in order.

    Never ordered by time or step: clocks differ, and an attempt that should have ended may be ahead.
    """
    unique: dict[str, Candidate] = {}
    for candidate in candidates:
        key = normalise(candidate.uri)
        known = unique.get(key)
        if known is None or (known.attempt is None and candidate.attempt is not None and known.origin != Origin.OWN):
            unique[key] = candidate
    return sorted(unique.values(), key=_rank)  # sorting is stable


def _rank(candidate: Candidate) -> tuple[int, int]:
    if candidate.origin is Origin.OWN:
        return 0, 0
    if candidate.origin is Origin.USER:
        return 4, 0
    if candidate.attempt is not None:
        return 2, -candidate.attempt
    return (1, 0) if candidate.origin is Origin.PLATFORM else (3, 0)
