"""Attempts as they are found: what a place holds, what of it counts, and who may still write there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive
from chockstone.checkpoints.resume.attempts.claims import Claim, ClaimLog, Generation, Seen, claim_record
from chockstone.checkpoints.resume.attempts.flyte_native import FlyteNativeFile, StockForm, list_flyte_native
from chockstone.checkpoints.resume.attempts.places import AttemptPlace, PlaceListing

log = logging.getLogger(__name__)
R = TypeVar("R")
_MOST_ASKED: Final = 16  # records of a place that holds nothing else


@dataclass(slots=True)
class _Memory:
    """What was read of a place once and cannot change: entries are never written twice."""

    claims: dict[int, Claim] = field(default_factory=dict)
    superseded: set[Generation] | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One place after one listing. ``generations`` are all that were committed, newest first."""

    place: AttemptPlace
    listing: PlaceListing
    log: ClaimLog
    generations: tuple[Generation, ...]
    stock: tuple[FlyteNativeFile, ...] = ()  # what a stock writer may have left, where there is no generation
    _memory: _Memory = field(default_factory=_Memory, compare=False, repr=False)

    @classmethod
    def look(cls, place: AttemptPlace, stock: StockForm | None = None) -> Attempt:
        """One request; a second one, where nothing of ours is there, if stock writers are to be reckoned with."""
        listing = place.listing()
        parsed = (Generation.parse(name) for name in listing.archives)
        generations = tuple(sorted((each for each in parsed if each is not None), reverse=True))
        files = list_flyte_native(place, stock) if stock is not None and not generations else ()
        return cls(place, listing, ClaimLog.of(list(listing.records)), generations, files)

    def voids(self) -> set[Generation]:
        """Generations that were committed after their incarnation had lost its right. Reads what it must, once."""
        if self._memory.superseded is None:
            self._memory.superseded = self._superseded()
        return self._memory.superseded

    def _superseded(self) -> set[Generation]:
        if not self.generations or self.log.last <= min(each.incarnation for each in self.generations):
            return set()
        seen = self._seen()
        return {
            generation
            for generation in self.generations
            if any(not view.covers(generation) for number, view in seen.items() if number > generation.incarnation)
        }

    def _seen(self) -> Mapping[int, Seen]:
        oldest = min(each.incarnation for each in self.generations)
        views = {number: self._view(number) for number in self.log.seen if number > oldest}
        return {number: view for number, view in views.items() if view is not None}

    def _view(self, number: int) -> Seen | None:
        """One that is damaged is as good as none: what was committed before it counts, and newer ones say so, too."""
        try:
            return self._decoded(self.log.seen[number], Seen.decode)
        except DamagedArchive as error:
            log.warning("resume record ignored place=%s error=%s", self.place.uri, error)
            return None

    def vanished(self) -> Generation | None:
        """A generation that records here tell of, though none is here: nobody removes the last one of a chain."""
        if self.generations:
            return None
        views = (self._view(number) for number in sorted(self.log.seen, reverse=True)[:_MOST_ASKED])
        return next((view.newest for view in views if view is not None and view.newest is not None), None)

    def claim(self, number: int) -> Claim | None:
        if (known := self._memory.claims.get(number)) is not None:
            return known
        claim = self._decoded(claim_record(number), Claim.decode)
        if claim is not None:
            self._memory.claims[number] = claim
        return claim

    def is_settled(self, references: Container[tuple[str, str]] = ()) -> bool:
        """Whether nothing that counts is here, or ever will be: a later attempt shut the place, and it is empty.

        Or holds nothing but ``references``, to archives that are looked at where they are.
        """
        if not self.log.is_fenced:
            return False
        real = (each for each in self.generations if (self.place.uri, each.name) not in references)
        if any(each not in self.voids() for each in real):
            return False
        return not self.stock or not self.has_stock_that_counts()

    def has_stock_that_counts(self) -> bool:
        """Whether files of the stock view were left by a stock writer, and not by an attempt of a chain."""
        claims = self.log.claims
        if not self.stock or not claims:
            return bool(self.stock)
        first = self.claim(claims[0])
        return first is not None and (first.had_stock or first.kind == "fence")

    def _decoded(self, record: str, decode: Callable[..., R]) -> R | None:
        """None where it is gone meanwhile. Damage is looked at twice: it may have been on the way."""
        what = f"{record} of {self.place.uri}"
        try:
            try:
                return decode(self.place.read(record), what=what)
            except DamagedArchive:
                return decode(self.place.read(record), what=what)
        except CheckpointMissing:
            return None

    @property
    def last(self) -> int:
        """The last number that an incarnation or a fence took, as far as anything here tells."""
        return max((self.log.last, *(each.incarnation for each in self.generations)))

    def newest_valid(self) -> Generation | None:
        voids = self.voids()
        return next((each for each in self.generations if each not in voids), None)

    def trials(self, generation: Generation) -> int:
        """How often a restore of it was begun and did not end well, where that is counted."""
        start = f"trials/{generation.name}."
        return sum(record.startswith(start) for record in self.listing.records)
