"""Claims: the records of who may write in a place. Each new entry supersedes the entries before it.

An entry is either the claim of an incarnation (one process of an attempt) or the fence of a later attempt. Entries are
numbered and put if absent, so two processes never hold the same number. After an entry is written, its writer lists
the commits and records the newest one beside the entry. A writer that finds no newer entry after its commit is in that
list, so an acknowledged save is never superseded.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple

from chockstone.checkpoints.errors import DamagedArchive, InvalidName, UnsupportedArchive

FORMAT: Final = 1
CLAIMS: Final = "claims"  # folder of the entries
SETTLED: Final = "settled.json"
REFERRERS: Final = "referrers"  # folder of records of other chains' attempts that refer to an archive here
MAX_GIVEN: Final = 1000
MAX_GIVEN_BYTES: Final = 160 * 1024  # of all URIs, so that the record stays below the maximum size
_GENERATION = re.compile(r"(\d{6,12})-(\d{4,9})\Z")
_RECORD = re.compile(r"claims/(\d{6,9})(\.seen|\.fenced)?\.json\Z")

Kind = Literal["claim", "fence"]
Json = dict[str, Any]  # as parsed, before it is checked


class Generation(NamedTuple):
    """One saved state of an attempt: its number, and the incarnation that wrote it."""

    number: int
    incarnation: int

    @property
    def name(self) -> str:
        """Raises InvalidName for a number that ``parse`` does not accept: such a save would never be found."""
        name = f"{self.number:06d}-{self.incarnation:04d}"
        if _GENERATION.match(name) is None:
            raise InvalidName(f"{name} is past the last generation that a place can hold; look for stray files there")
        return name

    @classmethod
    def parse(cls, name: str) -> Generation | None:
        found = _GENERATION.match(name)
        return cls(int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True, slots=True)
class Claim:
    kind: Kind
    by: str  # the place of the attempt that wrote it
    attempt: int | None
    nonce: str  # identifies our own claim if the answer to its request was lost
    identity: Mapping[str, str]
    given: tuple[str, ...] = ()  # candidates of this attempt: the lineage for later attempts
    foreign: tuple[str, ...] = ()  # the candidates where checkpoints of another chain are accepted
    had_flyte_native: bool = False  # Flyte's native files were here before the first claim; key "had_stock"

    def encode(self) -> bytes:
        """Encode the claim with as many candidates as fit, from the first on."""
        given = _fitting(self.given)
        return _encode(
            {
                "kind": self.kind,
                "by": self.by,
                "attempt": self.attempt,
                "nonce": self.nonce,
                "identity": dict(self.identity),
                "given": given,
                "foreign": [uri for uri in self.foreign if uri in given],
                "had_stock": self.had_flyte_native,
            }
        )

    @classmethod
    def decode(cls, content: bytes, *, what: str) -> Claim:
        values = _decode(content, what)
        kind, by, attempt, nonce = (values.get(name) for name in ("kind", "by", "attempt", "nonce"))
        identity, given, foreign = (values.get(name) for name in ("identity", "given", "foreign"))
        sound = (
            kind in ("claim", "fence")
            and isinstance(by, str)
            and isinstance(nonce, str)
            and (attempt is None or (isinstance(attempt, int) and not isinstance(attempt, bool)))
            and isinstance(identity, dict)
            and all(isinstance(value, str) for value in identity.values())
            and _are_uris(given)
            and _are_uris(foreign)
        )
        if not sound:
            raise DamagedArchive(f"{what} is not a claim")
        had_flyte_native = values.get("had_stock") is True
        return cls(kind, by, attempt, nonce, identity, tuple(given), tuple(foreign), had_flyte_native)  # type: ignore[arg-type]  # checked above


@dataclass(frozen=True, slots=True)
class NewestCommit:
    """The newest commit when an entry was written; None: there was no commit."""

    newest: Generation | None

    def covers(self, generation: Generation) -> bool:
        if self.newest is None:
            return False
        return generation.number < self.newest.number or generation == self.newest

    def encode(self) -> bytes:
        return _encode({"newest": self.newest.name if self.newest else None})

    @classmethod
    def decode(cls, content: bytes, *, what: str) -> NewestCommit:
        newest = _decode(content, what).get("newest")
        generation = Generation.parse(newest) if isinstance(newest, str) else None
        if newest is not None and generation is None:
            raise DamagedArchive(f"{what} names no generation")
        return cls(generation)


class GenerationReference(NamedTuple):
    """A generation that only refers to another one."""

    place: str
    generation: str
    target: str  # the place of the other
    target_generation: str


@dataclass(frozen=True, slots=True)
class SettledAttempts:
    """Earlier attempts that are fenced and hold nothing to restore, so that later attempts need not list them.

    A hint that saves requests: if nothing else is found, a resume looks at them too.
    """

    identity: Mapping[str, str]
    places: tuple[str, ...]  # newest first
    references: tuple[GenerationReference, ...] = ()  # which these places still hold

    def encode(self) -> bytes:
        """Encode as many places as fit. The next attempt lists the others again."""
        places = _fitting(self.places, copies=6)  # references repeat each place several times
        references = [list(each) for each in self.references if each.place in places]
        return _encode({"identity": dict(self.identity), "places": places, "references": references})

    @classmethod
    def decode(cls, content: bytes, *, what: str) -> SettledAttempts:
        values = _decode(content, what)
        identity, places, references = (values.get(name) for name in ("identity", "places", "references"))
        sound = (
            isinstance(identity, dict)
            and isinstance(places, list)
            and _are_uris(places)
            and isinstance(references, list)
            and all(isinstance(each, list) and len(each) == 4 for each in references)
            and all(isinstance(part, str) for each in references for part in each)
            and all(Generation.parse(each[1]) and Generation.parse(each[3]) for each in references)
        )
        if not sound:
            raise DamagedArchive(f"{what} is not a list of attempts")
        return cls(identity, tuple(places), tuple(GenerationReference(*each) for each in references))  # type: ignore[union-attr, arg-type]  # checked above


@dataclass(frozen=True, slots=True)
class Referrer:
    """An attempt of another chain that refers to an archive here. Attempts of the same chain write a fence instead."""

    by: str  # the place of that attempt

    @property
    def record(self) -> str:
        return f"{REFERRERS}/{hashlib.sha256(self.by.encode()).hexdigest()[:16]}.json"

    def encode(self) -> bytes:
        return _encode({"by": self.by})

    @classmethod
    def decode(cls, content: bytes, *, what: str) -> Referrer:
        by = _decode(content, what).get("by")
        if not isinstance(by, str):
            raise DamagedArchive(f"{what} names no attempt")
        return cls(by)


def claim_record(number: int) -> str:
    """Raises InvalidName for a number that ``ClaimLog`` does not accept: such a claim would be ignored."""
    record = f"claims/{number:06d}.json"
    if _RECORD.match(record) is None:
        raise InvalidName(f"{record} is past the last claim that a place can hold; look for stray files there")
    return record


def newest_commit_record(number: int, kind: Kind) -> str:
    """Return the name of the record beside an entry. It contains the kind, so that a listing shows fences."""
    return f"claims/{number:06d}{'.seen' if kind == 'claim' else '.fenced'}.json"


@dataclass(frozen=True, slots=True)
class ClaimLog:
    """The entries of a place, according to a listing."""

    claims: tuple[int, ...] = ()  # numbers, ascending
    newest_commits: Mapping[int, str] = field(default_factory=dict)  # names of the records, by number
    is_fenced: bool = False

    @classmethod
    def of(cls, records: Sequence[str]) -> ClaimLog:
        claims: set[int] = set()
        newest_commits: dict[int, str] = {}
        fenced: set[int] = set()
        for record in records:
            if found := _RECORD.match(record):
                number = int(found[1])
                if found[2] is None:
                    claims.add(number)
                else:
                    newest_commits[number] = record
                if found[2] == ".fenced":
                    fenced.add(number)
        return cls(tuple(sorted(claims)), newest_commits, bool(fenced))

    @property
    def last(self) -> int:
        """Return the highest number. The record beside a lost claim counts, too."""
        return max((*self.claims, *self.newest_commits), default=0)


def _are_uris(values: object) -> bool:
    return isinstance(values, list) and len(values) <= MAX_GIVEN and all(isinstance(uri, str) for uri in values)


def _fitting(uris: Sequence[str], *, copies: int = 2) -> list[str]:
    ends = accumulate(copies * len(json.dumps(uri)) for uri in uris)  # how often a record may contain it
    return [uri for uri, end in zip(uris[:MAX_GIVEN], ends, strict=False) if end <= MAX_GIVEN_BYTES]


def _encode(values: Json) -> bytes:
    record = {"format": FORMAT, **values}
    return json.dumps({**record, "digest": _digest(record)}, indent=1, sort_keys=True).encode() + b"\n"


def _digest(record: Json) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _decode(content: bytes, what: str) -> Json:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        raise DamagedArchive(f"{what} is not JSON") from None
    if not isinstance(values, dict) or not isinstance(values.get("format"), int):
        raise DamagedArchive(f"{what} is not a record of a chain")
    if values["format"] > FORMAT:
        raise UnsupportedArchive(
            f"{what} is of format {values['format']} and this version reads up to {FORMAT}; upgrade chockstone"
        )
    if values.pop("digest", None) != _digest(values):
        raise DamagedArchive(f"{what} was changed after the write")
    return values
