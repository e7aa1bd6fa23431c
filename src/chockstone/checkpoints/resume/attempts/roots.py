"""Roots: the attempts of one chain side by side, ``<root>/attempt-00003``, for those whom no platform gives places."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from chockstone.checkpoints.errors import InvalidName, ResumeError, Superseded
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.places import FOLDER, AttemptPlaces, normalise
from chockstone.checkpoints.stores.store import SUFFIX

MAX_ATTEMPT: Final = 99_999
_ATTEMPT = re.compile(r"attempt-(\d{5})" + re.escape(FOLDER) + r"\Z")


@dataclass(frozen=True, slots=True)
class Numbered:
    """Which attempt this is, and what was there before it."""

    attempt: int
    earlier: tuple[int, ...]  # newest first
    note: str = ""


def attempt_place(root: str, attempt: int) -> str:
    return f"{root.rstrip('/')}/attempt-{attempt:05d}"


def root_of(place: str) -> str | None:
    """The root that an attempt's place is below; None for a place that no root gave."""
    root, _, last = place.rpartition("/")
    return root if _ATTEMPT.match(last + FOLDER) else None


def attempts_in(places: AttemptPlaces, root: str, *, is_only_chain: bool = False) -> list[int]:
    """Numbers of the attempts that ever claimed a place there, rising. One request. Raises StoreError.

    ``is_only_chain``: archives where attempts should be are a Checkpointer's. They would be passed in silence, and the
    training begin at zero before their eyes: InvalidName instead.
    """
    names = places.names(root)
    found = sorted({int(match[1]) for name in names if (match := _ATTEMPT.match(name))})
    if is_only_chain and not found and any(name.endswith(SUFFIX) and len(name) > len(SUFFIX) for name in names):
        raise InvalidName(
            f"{root} holds checkpoints of a Checkpointer and no attempts of a Resume. To go on from them, give Resume "
            "another root, and where its restore() returns None call Checkpointer(…).restore(state)"
        )
    return found


def number_attempt(existing: Sequence[int], wanted: int | None) -> Numbered:
    """The attempt to be. What starts last is the newest, so a number behind what is there is raised past it."""
    newest = max(existing, default=-1)
    if wanted is not None and wanted >= newest:
        attempt, note = wanted, ""
    elif wanted is None:
        attempt, note = newest + 1, ""
    else:
        attempt = newest + 1
        note = f"this was to be attempt {wanted}, and attempt {newest} is there already: it is taken for {attempt}"
    if attempt > MAX_ATTEMPT:
        raise ResumeError(f"there are no attempts after {MAX_ATTEMPT}; begin another root with this one as its source")
    return Numbered(attempt, tuple(each for each in reversed(existing) if each < attempt), note)


def earlier_attempts(root: str, numbers: Iterable[int]) -> list[Candidate]:
    return [Candidate(attempt_place(root, number), Origin.DERIVED, number) for number in numbers]


def begun_before(root: str, existing: Sequence[int], attempt: int) -> list[Candidate]:
    """Those to go on from, once ``attempt`` has claimed its place. Superseded where a later one was there by then."""
    if existing and existing[-1] > attempt:
        raise Superseded(
            f"attempt {existing[-1]} of {root} had begun before attempt {attempt} did; stop this process, or start it "
            "again as a new attempt"
        )
    return earlier_attempts(root, (each for each in reversed(existing) if each < attempt))


def listed(uris: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str | os.PathLike[str]]:
    """One path is a list of one, and not of its letters."""
    return [uris] if isinstance(uris, str | os.PathLike) else list(uris)


def named_places(
    places: AttemptPlaces,
    uris: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    are_only_chains: bool = False,
) -> list[Candidate]:
    """Places that a user names, each the place of an attempt or the root of several, whose newest comes first."""
    found: list[Candidate] = []
    for uri in (normalise(normalise(each).removesuffix(FOLDER)) for each in listed(uris)):
        numbers = attempts_in(places, uri, is_only_chain=are_only_chains)
        found += [Candidate(attempt_place(uri, n), Origin.USER, n, may_be_foreign=True) for n in reversed(numbers)]
        found.append(Candidate(uri, Origin.USER, may_be_foreign=True))
    return found
