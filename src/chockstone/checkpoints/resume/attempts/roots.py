"""Roots: the attempts of one chain side by side, ``<root>/attempt-00003``, where no platform assigns places."""

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
class AttemptNumber:
    """The number of this attempt, and those of the earlier ones."""

    attempt: int
    earlier: tuple[int, ...]  # newest first
    note: str = ""


def attempt_place(root: str, attempt: int) -> str:
    return f"{root.rstrip('/')}/attempt-{attempt:05d}"


def root_of(place: str) -> str | None:
    """Return the root of an attempt's place, or None if the place is not below a root."""
    root, _, last = place.rpartition("/")
    return root if _ATTEMPT.match(last + FOLDER) else None


def attempts_in(places: AttemptPlaces, root: str, *, is_only_chain: bool = False) -> list[int]:
    """Return the numbers of all attempts that claimed a place there, ascending. One request. Raises StoreError.

    ``is_only_chain``: raise InvalidName if the root holds checkpoints of a Checkpointer and no attempts. Ignoring them
    would start the training from zero.
    """
    names = places.names(root)
    found = sorted({int(match[1]) for name in names if (match := _ATTEMPT.match(name))})
    if is_only_chain and not found and any(name.endswith(SUFFIX) and len(name) > len(SUFFIX) for name in names):
        raise InvalidName(
            f"{root} holds checkpoints of a Checkpointer and no attempts of a Resume. To resume from them, give Resume "
            "another root, and where its restore() returns None call Checkpointer(…).restore(state)"
        )
    return found


def number_attempt(existing: Sequence[int], wanted: int | None) -> AttemptNumber:
    """Return the number of a new attempt. The last one to start is the newest, so a lower number is raised."""
    newest = max(existing, default=-1)
    if wanted is not None and wanted >= newest:
        attempt, note = wanted, ""
    elif wanted is None:
        attempt, note = newest + 1, ""
    else:
        attempt = newest + 1
        note = f"attempt {wanted} was asked for, and attempt {newest} exists already: this is attempt {attempt}"
    if attempt > MAX_ATTEMPT:
        raise ResumeError(f"{MAX_ATTEMPT} is the last attempt of a root; use another root with this one as its source")
    return AttemptNumber(attempt, tuple(each for each in reversed(existing) if each < attempt), note)


def earlier_attempts(root: str, numbers: Iterable[int]) -> list[Candidate]:
    return [Candidate(attempt_place(root, number), Origin.DERIVED, number) for number in numbers]


def begun_before(root: str, existing: Sequence[int], attempt: int) -> list[Candidate]:
    """Return the attempts before ``attempt``, after it claimed its place. Raises Superseded if a later one exists."""
    if existing and existing[-1] > attempt:
        raise Superseded(
            f"attempt {existing[-1]} of {root} started before attempt {attempt} did; stop this process, or start it "
            "again as a new attempt"
        )
    return earlier_attempts(root, (each for each in reversed(existing) if each < attempt))


def as_list(uris: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str | os.PathLike[str]]:
    """Return a list of paths; a single path is a list of one."""
    return [uris] if isinstance(uris, str | os.PathLike) else list(uris)


def named_places(
    places: AttemptPlaces,
    uris: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    are_only_chains: bool = False,
) -> list[Candidate]:
    """Return the candidates that a user names: each is one attempt's place, or a root (its newest attempt first)."""
    found: list[Candidate] = []
    for uri in (normalise(normalise(each).removesuffix(FOLDER)) for each in as_list(uris)):
        numbers = attempts_in(places, uri, is_only_chain=are_only_chains)
        found += [Candidate(attempt_place(uri, n), Origin.USER, n, may_be_foreign=True) for n in reversed(numbers)]
        found.append(Candidate(uri, Origin.USER, may_be_foreign=True))
    return found
