"""Dependents: which archives of a store a chain of attempts still needs, for callers that remove archives.

An archive belongs to a chain if it is ``<place>.ckpt/<generation>.tar``. Attempts that may refer to it are found in
three ways: a fence in its place names the attempt that wrote the fence; a record names an attempt of another chain;
attempts below one root are siblings. Each attempt found is followed in all three ways. Only reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from chockstone.checkpoints.errors import (
    CheckpointMissing,
    DamagedArchive,
    ForeignArchive,
    InvalidName,
    StoreUnreachable,
    UnsupportedArchive,
)
from chockstone.checkpoints.format.manifest import Manifest
from chockstone.checkpoints.reading.archive import Head
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.candidates import MAX_CANDIDATES
from chockstone.checkpoints.resume.attempts.claims import REFERRERS, Claim, Generation, Referrer
from chockstone.checkpoints.resume.attempts.generations import FORWARD, identity_of, read_head_of
from chockstone.checkpoints.resume.attempts.places import FOLDER, AttemptPlace, AttemptPlaces, normalise
from chockstone.checkpoints.resume.attempts.roots import attempt_place, attempts_in, root_of
from chockstone.checkpoints.retention.chain_facts import NO_CHAIN, ChainFacts, Dependent

Key = tuple[str, str]  # place and generation
_WIDTH: Final = 8  # heads read at once


def references_of(place: str, manifest: Manifest) -> set[Key]:
    """Return the archives that the one with this manifest, at ``place``, needs for a restore."""
    needed: set[Key] = set()
    source = manifest.metadata.get("source") if manifest.kind == FORWARD else None
    if isinstance(source, dict):
        needed.add((str(source.get("uri")), str(source.get("generation"))))
    inherited = manifest.metadata.get("inherited")
    for each in inherited if isinstance(inherited, list) else []:
        if isinstance(each, dict):
            needed.add((place, str(each.get("generation"))))
    return needed


class Dependents:
    """Finds the dependents of archives of one store. Sends no request for names that belong to no chain."""

    def __init__(self, store_url: str, places: AttemptPlaces | None = None) -> None:
        self._url = store_url.rstrip("/")
        self._places = places

    def chain_facts(self, names: Sequence[str]) -> ChainFacts:
        """Return who needs these archives. Raises StoreError if a place cannot be read: its needs are unknown."""
        keys = {name: key for name in names if (key := self._key(name)) is not None}
        if not keys:
            return NO_CHAIN
        self._places = self._places or AttemptPlaces()
        return _Inspection(self._places, keys).chain_facts()

    def _key(self, name: str) -> Key | None:
        folder, _, last = f"{self._url}/{name}".rpartition("/")
        if not folder.endswith(FOLDER) or Generation.parse(last) is None:
            return None
        try:
            return normalise(folder.removesuffix(FOLDER)), last
        except InvalidName:  # a whole bucket or file system, which cannot be a place
            return None


@dataclass(frozen=True, slots=True)
class _PathTranslation:
    """Translates paths of a record to paths here: the writer may have mounted the storage elsewhere."""

    recorded: str
    actual: str

    @classmethod
    def of(cls, recorded: str, actual: str) -> _PathTranslation:
        theirs, ours = recorded.split("/"), actual.split("/")
        while theirs and ours and theirs[-1] == ours[-1]:
            theirs.pop()
            ours.pop()
        return cls("/".join(theirs), "/".join(ours))

    def translate(self, uri: str) -> str:
        """Return ``uri`` unchanged if it cannot be a place: then it matches none."""
        moved = uri
        if self.recorded != self.actual and f"{uri}/".startswith(f"{self.recorded}/"):
            moved = self.actual + uri[len(self.recorded) :]
        try:
            return normalise(moved)
        except InvalidName:
            return uri


class _Inspection:
    """Lists all places that matter, once."""

    def __init__(self, places: AttemptPlaces, keys: dict[str, Key]) -> None:
        self._places = places
        self._keys = keys
        self._names = {key: name for name, key in keys.items()}
        self._attempts: dict[str, Attempt] = {}
        self._translations: dict[str, _PathTranslation] = {}
        self._roots: set[str] = set()

    def chain_facts(self) -> ChainFacts:
        self._inspect({uri for uri, _ in self._keys.values()})
        superseded: set[str] = set()
        for uri in {uri for uri, _ in self._keys.values()}:
            there = {each.name for each in self._attempts[uri].superseded()}
            superseded |= {name for name, key in self._keys.items() if key[0] == uri and key[1] in there}
        references: set[str] = set()
        chains: dict[str, str] = {}
        dependents: dict[str, list[Dependent]] = {}
        for (uri, generation), head in self._heads():
            name = self._names.get((uri, generation))
            if name is not None:
                chains[name] = json.dumps(identity_of(head.manifest), sort_keys=True)
                if head.manifest.kind == FORWARD:
                    references.add(name)
            for place, target in references_of(uri, head.manifest):
                key = (place if place == uri else self._translations[uri].translate(place)), target
                if key in self._names:
                    dependents.setdefault(self._names[key], []).append(Dependent(uri, generation, name))
        numbers = {name: number for name, key in self._keys.items() if (number := Generation.parse(key[1]))}
        return ChainFacts(numbers, chains, frozenset(superseded), frozenset(references), dependents)

    def _inspect(self, uris: set[str]) -> None:
        pending = sorted(uris)
        while pending:
            uri = pending.pop()
            if uri in self._attempts:
                continue
            if len(self._attempts) >= max(MAX_CANDIDATES, len(uris)):
                raise StoreUnreachable(
                    f"more than {MAX_CANDIDATES} attempts may refer to these checkpoints, so the command "
                    "cannot find out which of them are needed; name fewer of them, or a prefix"
                )
            attempt = self._attempts[uri] = Attempt.inspect(self._places.open(uri))
            claims = [claim for number in attempt.log.claims if (claim := _read(attempt, number)) is not None]
            own = next((claim.by for claim in reversed(claims) if claim.kind == "claim"), uri)
            translation = self._translations[uri] = _PathTranslation.of(own, uri)
            fences = [claim.by for claim in claims if claim.kind == "fence"]
            elsewhere = [translation.translate(by) for by in (*fences, *_referrers(attempt))]
            pending += [each for each in (*elsewhere, *self._siblings(uri)) if _is_place(each)]

    def _siblings(self, uri: str) -> list[str]:
        root = root_of(uri)
        if root is None or root in self._roots:
            return []
        self._roots.add(root)
        return [normalise(attempt_place(root, number)) for number in attempts_in(self._places, root)]

    def _heads(self) -> Iterable[tuple[Key, Head]]:
        keys = [(uri, each.name) for uri, attempt in self._attempts.items() for each in attempt.generations]
        with ThreadPoolExecutor(_WIDTH, "chockstone-dependents") as pool:
            heads = list(pool.map(lambda key: _head(self._attempts[key[0]].place, key[1]), keys))
        return [(key, head) for key, head in zip(keys, heads, strict=True) if head is not None]


def _read(attempt: Attempt, number: int) -> Claim | None:
    """Return None for a damaged claim: the records beside it show whether the place is fenced."""
    with suppress(DamagedArchive):
        return attempt.claim(number)
    return None


def _referrers(attempt: Attempt) -> list[str]:
    found: list[str] = []
    for record in attempt.listing.records:
        if record.startswith(f"{REFERRERS}/"):
            with suppress(DamagedArchive, CheckpointMissing):
                content = attempt.place.read(record)
                found.append(Referrer.decode(content, what=f"{record} of {attempt.place.uri}").by)
    return found


def _is_place(uri: str) -> bool:
    try:
        normalise(uri)
    except InvalidName:
        return False
    return True


def _head(place: AttemptPlace, name: str) -> Head | None:
    """Return None if the archive is gone, or cannot be restored."""
    for is_last in (False, True):
        try:
            return read_head_of(place, name)
        except DamagedArchive:
            if is_last:  # read it twice: the transfer may have damaged it
                return None
        except (CheckpointMissing, ForeignArchive, UnsupportedArchive):
            return None
    return None
