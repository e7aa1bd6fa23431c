"""Candidates: places that may hold something to go on from, each once, in the order of trust."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from chockstone.checkpoints.resume.attempts.places import normalise

MAX_CANDIDATES: Final = 1000  # that one decision looks at


class Origin(StrEnum):
    OWN = "own"  # this attempt's own place: it was restarted where it stood
    PLATFORM = "platform"  # what the platform calls the previous one: a hint, no authority
    LINEAGE = "lineage"  # what those before were given
    DERIVED = "derived"  # computed from the shape of our own path
    USER = "user"


@dataclass(frozen=True, slots=True)
class Candidate:
    uri: str
    origin: Origin
    attempt: int | None = None
    may_be_foreign: bool = False  # another chain's is welcome here


def ranked(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Newest first and each place once: ours, the platform's, attempts by number, the rest as they come.

    By number and never by time or step: clocks differ, and an attempt that should be dead may be ahead.
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
