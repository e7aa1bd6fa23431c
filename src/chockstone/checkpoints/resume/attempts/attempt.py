"""One attempt as found on storage: its generations, its claims, and which generations are superseded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive
from chockstone.checkpoints.resume.attempts.claims import Claim, ClaimLog, Generation, NewestCommit, claim_record
from chockstone.checkpoints.resume.attempts.flyte_native import FlyteNativeFile, FlyteNativeForm, list_flyte_native
from chockstone.checkpoints.resume.attempts.places import AttemptPlace, PlaceListing

log = logging.getLogger(__name__)
R = TypeVar("R")
_MOST_READ: Final = 16  # records of a place without generations


@dataclass(slots=True)
class _RecordCache:
    """Records of a place that were read. They cannot change: no record is written twice."""

    claims: dict[int, Claim] = field(default_factory=dict)
    superseded: set[Generation] | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One place after one listing. ``generations`` are all committed ones, newest first."""

    place: AttemptPlace
    listing: PlaceListing
    log: ClaimLog
    generations: tuple[Generation, ...]
    flyte_native: tuple[FlyteNativeFile, ...] = ()  # Flyte's native files; listed only if there is no generation
    _cache: _RecordCache = field(default_factory=_RecordCache, compare=False, repr=False)

    @classmethod
    def inspect(cls, place: AttemptPlace, flyte_native: FlyteNativeForm | None = None) -> Attempt:
        """List a place with one request, and Flyte's native files with a second one if there is no generation."""
        listing = place.listing()
        parsed = (Generation.parse(name) for name in listing.archives)
        generations = tuple(sorted((each for each in parsed if each is not None), reverse=True))
        files = list_flyte_native(place, flyte_native) if flyte_native is not None and not generations else ()
        return cls(place, listing, ClaimLog.of(list(listing.records)), generations, files)

    def superseded(self) -> set[Generation]:
        """Return the generations that were committed after their writer lost its lease. Reads each record once."""
        if self._cache.superseded is None:
            self._cache.superseded = self._find_superseded()
        return self._cache.superseded

    def _find_superseded(self) -> set[Generation]:
        if not self.generations or self.log.last <= min(each.incarnation for each in self.generations):
            return set()
        newest = self._newest_commits()
        return {
            generation
            for generation in self.generations
            if any(
                not commit.covers(generation) for number, commit in newest.items() if number > generation.incarnation
            )
        }

    def _newest_commits(self) -> Mapping[int, NewestCommit]:
        oldest = min(each.incarnation for each in self.generations)
        found = {number: self._newest_commit(number) for number in self.log.newest_commits if number > oldest}
        return {number: commit for number, commit in found.items() if commit is not None}

    def _newest_commit(self, number: int) -> NewestCommit | None:
        """Return None for a damaged record: then earlier commits count, and newer records tell the same."""
        try:
            return self._decoded(self.log.newest_commits[number], NewestCommit.decode)
        except DamagedArchive as error:
            log.warning("resume record ignored place=%s error=%s", self.place.uri, error)
            return None

    def missing_generation(self) -> Generation | None:
        """Return a generation that the records name although the place holds none.

        Retention never removes the last generation of a chain, so something else deleted it.
        """
        if self.generations:
            return None
        numbers = sorted(self.log.newest_commits, reverse=True)[:_MOST_READ]
        commits = (self._newest_commit(number) for number in numbers)
        return next((commit.newest for commit in commits if commit is not None and commit.newest is not None), None)

    def claim(self, number: int) -> Claim | None:
        if (known := self._cache.claims.get(number)) is not None:
            return known
        claim = self._decoded(claim_record(number), Claim.decode)
        if claim is not None:
            self._cache.claims[number] = claim
        return claim

    def is_settled(self, references: Container[tuple[str, str]] = ()) -> bool:
        """Whether the place holds nothing to restore and never will: a later attempt fenced it.

        A settled place may still hold ``references`` to archives in other places.
        """
        if not self.log.is_fenced:
            return False
        real = (each for each in self.generations if (self.place.uri, each.name) not in references)
        if any(each not in self.superseded() for each in real):
            return False
        return not self.flyte_native or not self.has_usable_flyte_native()

    def has_usable_flyte_native(self) -> bool:
        """Whether Flyte's own checkpoint wrote the native files, and not an attempt of a chain as a copy."""
        claims = self.log.claims
        if not self.flyte_native or not claims:
            return bool(self.flyte_native)
        first = self.claim(claims[0])
        return first is not None and (first.had_flyte_native or first.kind == "fence")

    def _decoded(self, record: str, decode: Callable[..., R]) -> R | None:
        """Return None if the record is gone. Read a damaged record twice: the transfer may have damaged it."""
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
        """Return the highest number of an incarnation or fence that any record or generation shows."""
        return max((self.log.last, *(each.incarnation for each in self.generations)))

    def newest_valid(self) -> Generation | None:
        superseded = self.superseded()
        return next((each for each in self.generations if each not in superseded), None)

    def failed_restores(self, generation: Generation) -> int:
        """Return how many restores of the generation started and did not succeed, if they are counted."""
        start = f"trials/{generation.name}."
        return sum(record.startswith(start) for record in self.listing.records)
