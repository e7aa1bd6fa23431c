"""Claims: who writes in a place, as a log in which each entry ends the right of those before it.

An entry is the claim of an incarnation, one process of an attempt, or the fence of a later attempt. It
is put if its number is free, so two processes never hold one. What had been committed is listed after
the entry is in force and written beside it: whoever committed and then found no newer entry is in that
list, so a save that was acknowledged is never void.
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
CLAIMS: Final = "claims"  # the folder of the log
SETTLED: Final = "settled.json"
REFERRERS: Final = "referrers"  # the folder of records of attempts of other chains that refer to an archive here
MAX_GIVEN: Final = 1000
MAX_GIVEN_BYTES: Final = 160 * 1024  # of all of them, so that the whole stays a record that can be read
_GENERATION = re.compile(r"(\d{6,12})-(\d{4,9})\Z")
_RECORD = re.compile(r"claims/(\d{6,9})(\.seen|\.fenced)?\.json\Z")

Kind = Literal["claim", "fence"]
Json = dict[str, Any]  # as parsed, before it is checked


class Generation(NamedTuple):
    """One saved state of an attempt: numbered, and by which incarnation."""

    number: int
    incarnation: int

    @property
    def name(self) -> str:
        """InvalidName where ``parse`` would not know it again: what is saved there would never be found."""
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
    nonce: str  # tells a claim of ours, whose answer was lost, from another's
    identity: Mapping[str, str]
    given: tuple[str, ...] = ()  # where it was told to look: lineage for those after it
    foreign: tuple[str, ...] = ()  # those among them where another chain's was welcome
    had_stock: bool = False  # files of a stock writer were here before the first claim

    def encode(self) -> bytes:
        """As many of those it was given as there is room for, the first ones first."""
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
                "had_stock": self.had_stock,
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
            raise DamagedArchive(f"{what} is no claim")
        had_stock = values.get("had_stock") is True
        return cls(kind, by, attempt, nonce, identity, tuple(given), tuple(foreign), had_stock)  # type: ignore[arg-type]  # checked above


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest commit when an entry was in force; none at all for None."""

    newest: Generation | None

    def covers(self, generation: Generation) -> bool:
        if self.newest is None:
            return False
        return generation.number < self.newest.number or generation == self.newest

    def encode(self) -> bytes:
        return _encode({"newest": self.newest.name if self.newest else None})

    @classmethod
    def decode(cls, content: bytes, *, what: str) -> Seen:
        newest = _decode(content, what).get("newest")
        generation = Generation.parse(newest) if isinstance(newest, str) else None
        if newest is not None and generation is None:
            raise DamagedArchive(f"{what} names no generation")
        return cls(generation)


class GenerationReference(NamedTuple):
    """A generation that only names another one."""

    place: str
    generation: str
    target: str  # the place of the other
    target_generation: str


@dataclass(frozen=True, slots=True)
class Settled:
    """Earlier attempts that an attempt found shut and empty, so that those after it need not ask them again.

    A hint that saves requests: where nothing else is found, they are looked at all the same.
    """

    identity: Mapping[str, str]
    places: tuple[str, ...]  # newest first
    references: tuple[GenerationReference, ...] = ()  # that these places still hold

    def encode(self) -> bytes:
        """As many places as there is room for; all that is said of the others is left out, and they are asked again."""
        places = _fitting(self.places, copies=6)  # with their references, each is there several times
        references = [list(each) for each in self.references if each.place in places]
        return _encode({"identity": dict(self.identity), "places": places, "references": references})

    @classmethod
    def decode(cls, content: bytes, *, what: str) -> Settled:
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
            raise DamagedArchive(f"{what} is no list of attempts")
        return cls(identity, tuple(places), tuple(GenerationReference(*each) for each in references))  # type: ignore[union-attr, arg-type]  # checked above


@dataclass(frozen=True, slots=True)
class Referrer:
    """An attempt of another chain that refers to an archive of this place. Those of the same chain leave a fence."""

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
    """InvalidName where a listing would not show it as one: then nobody would heed it."""
    record = f"claims/{number:06d}.json"
    if _RECORD.match(record) is None:
        raise InvalidName(f"{record} is past the last claim that a place can hold; look for stray files there")
    return record


def seen_record(number: int, kind: Kind) -> str:
    """The kind stands in the name, so that a listing tells who is fenced."""
    return f"claims/{number:06d}{'.seen' if kind == 'claim' else '.fenced'}.json"


@dataclass(frozen=True, slots=True)
class ClaimLog:
    """The entries of a place as a listing shows them."""

    claims: tuple[int, ...] = ()  # numbers, rising
    seen: Mapping[int, str] = field(default_factory=dict)  # records by number
    is_fenced: bool = False

    @classmethod
    def of(cls, records: Sequence[str]) -> ClaimLog:
        claims: set[int] = set()
        seen: dict[int, str] = {}
        fenced: set[int] = set()
        for record in records:
            if found := _RECORD.match(record):
                number = int(found[1])
                if found[2] is None:
                    claims.add(number)
                else:
                    seen[number] = record
                if found[2] == ".fenced":
                    fenced.add(number)
        return cls(tuple(sorted(claims)), seen, bool(fenced))

    @property
    def last(self) -> int:
        """A record beside a claim that is gone tells of it all the same."""
        return max((*self.claims, *self.seen), default=0)


def _are_uris(values: object) -> bool:
    return isinstance(values, list) and len(values) <= MAX_GIVEN and all(isinstance(uri, str) for uri in values)


def _fitting(uris: Sequence[str], *, copies: int = 2) -> list[str]:
    ends = accumulate(copies * len(json.dumps(uri)) for uri in uris)  # so often it may be listed
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
        raise DamagedArchive(f"{what} is no record of a chain")
    if values["format"] > FORMAT:
        raise UnsupportedArchive(
            f"{what} is of format {values['format']} and this version reads up to {FORMAT}; upgrade chockstone"
        )
    if values.pop("digest", None) != _digest(values):
        raise DamagedArchive(f"{what} was changed after the write")
    return values
