"""The lookout: every place that may hold something, looked at, and what there is to walk past.

Earlier attempts of the chain are fenced before what they hold is counted, so nothing is added to them
unnoticed. What they were given is looked at only where the rest holds nothing: it can only be older.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from chockstone.checkpoints.errors import DamagedArchive, StoreUnreachable
from chockstone.checkpoints.restoring.walk_back import Ending, WalkBack
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.candidates import MAX_CANDIDATES, Candidate, Origin, ranked
from chockstone.checkpoints.resume.attempts.claims import SETTLED, Claim, Generation, GenerationReference, Settled
from chockstone.checkpoints.resume.attempts.flyte_native import StockForm
from chockstone.checkpoints.resume.attempts.places import AttemptPlace, AttemptPlaces, normalise
from chockstone.checkpoints.resume.attempts.write_lease import fence
from chockstone.checkpoints.resume.walk.probing import Deadline, probe

log = logging.getLogger(__name__)
_MOST_FENCED: Final = 16  # in one start; each attempt fences those before it, so there are few to do
_FENCES_AT_ONCE: Final = 8
_FIRST_LOOKS: Final = 2  # and twice as many each time, until one tells which are settled
_MOST_ASKED: Final = 3  # claims of one place, for whose it is


@dataclass(frozen=True, slots=True)
class Item:
    """One step of the walk: a generation, a place without any, or one that could not be looked at."""

    candidate: Candidate
    attempt: Attempt | None
    generation: Generation | None = None
    error: Exception | None = None
    is_void: bool = False
    is_last_resort: bool = False


class CandidateScanner:
    """What is known of the places of a chain. Not thread-safe: the chain holds its lock."""

    def __init__(
        self,
        places: AttemptPlaces,
        identity: Mapping[str, str],
        candidates: Sequence[Candidate],
        stock: StockForm | None,
        *,
        new_fence: Callable[[], Claim] | None,
        warn: Callable[[str], None],
    ) -> None:
        """``new_fence``: what is written into earlier attempts; None: nothing is."""
        self._places = places
        self._identity = identity
        self._stock = stock
        self._new_fence = new_fence
        self._warn = warn
        self.left_out = 0  # more than anybody may look at
        self.candidates: list[Candidate] = []
        self.add(candidates)
        self.looked: dict[str, Attempt] = {}  # by place
        self._traced: set[str] = set()  # places whose lineage was followed
        self.settled: dict[str, None] = {}  # places, as the newest attempt that recorded any found them
        self._references: dict[
            tuple[str, str], GenerationReference
        ] = {}  # that those still hold, by place and generation
        self._aside: list[Candidate] = []

    def add(self, candidates: Sequence[Candidate]) -> None:
        everything = ranked([*self.candidates, *candidates])
        self.candidates = everything[:MAX_CANDIDATES]
        self.left_out = max(self.left_out, len(everything) - len(self.candidates))

    def earlier(self) -> list[Attempt]:
        """Earlier attempts of this chain that were looked at, newest first."""
        origins = (Origin.DERIVED, Origin.PLATFORM, Origin.LINEAGE)
        ours = (each for each in self.candidates if each.origin in origins and not each.may_be_foreign)
        looked = (self.looked.get(normalise(each.uri)) for each in ours)
        return [each for each in looked if each is not None]

    def items(self, candidates: Sequence[Candidate], deadline: Deadline) -> list[Item]:
        """Everything to be walked past in these places, newest first."""
        candidates, looks = self._probed(candidates, deadline)
        fenced = self._fence_all(candidates, looks)
        items: list[Item] = []
        for candidate, look in zip(candidates, looks, strict=True):
            if isinstance(look, Exception):
                items.append(Item(candidate, None, error=look))
                continue
            attempt = self.looked[look.place.uri] = fenced.get(look.place.uri, look)
            items += generations_of(candidate, attempt)
        return items

    def _probed(
        self, candidates: Sequence[Candidate], deadline: Deadline
    ) -> tuple[list[Candidate], list[Attempt | Exception]]:
        """Those that are looked at, in their order: the newest few at first, which may tell that others are settled."""
        asked: list[Candidate] = []
        looks: list[Attempt | Exception] = []
        left, width = self._unsettled(candidates), _FIRST_LOOKS
        while left:
            page, left = left[:width], left[width:]
            found = probe(self._places, page, deadline, self._stock)
            asked += page
            looks += found
            if not self.settled:
                self.read_settled([each for each in found if isinstance(each, Attempt)])
            left = self._unsettled(left)
            width = len(left) if self.settled else 2 * width
        return asked, looks

    def read_settled(self, attempts: Sequence[Attempt]) -> None:
        """What the newest of these attempts found settled. A record that cannot be read is ignored: all are asked."""
        for attempt in attempts:
            if SETTLED in attempt.listing.records:
                with suppress(Exception):
                    record = Settled.decode(attempt.place.read(SETTLED), what=f"{SETTLED} of {attempt.place.uri}")
                    if dict(record.identity) == self._identity:
                        self.settled = dict.fromkeys(record.places)
                        self._references = {each[:2]: each for each in record.references}
                        return

    def _unsettled(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those to look at; the others are set aside for ``set_aside``."""
        if not self.settled:
            return list(candidates)
        left: list[Candidate] = []
        for candidate in candidates:
            is_ours = candidate.origin is not Origin.USER and not candidate.may_be_foreign
            if is_ours and normalise(candidate.uri) in self.settled:
                self._aside.append(candidate)
            else:
                left.append(candidate)
        return left

    def set_aside(self, deadline: Deadline) -> list[Item]:
        """What is in the places that were not asked so far, because an earlier attempt found them settled."""
        candidates, self._aside, self.settled, self._references = self._aside, [], {}, {}
        return self.items(candidates, deadline) if candidates else []

    @property
    def aside(self) -> list[Candidate]:
        """Places that are not asked, because an earlier attempt found them settled."""
        return list(self._aside)

    def claimed_places(self) -> list[AttemptPlace]:
        """Of earlier attempts of this chain that ever began, newest first."""
        looked = [each.place for each in self.earlier() if each.log.claims]
        return [*looked, *(self._places.open(each.uri) for each in self._aside)]

    def settled_now(self, references: Mapping[tuple[str, str], GenerationReference]) -> Settled:
        """Earlier attempts of this chain that need not be asked again.

        ``references``: what is known to be one, by place and generation.
        """
        found = [
            each.place.uri
            for each in self.earlier()
            if each.place.uri in self.settled or _is_settled(each, references)  # it was one of the first to be asked
        ]
        places = (*found, *(normalise(each.uri) for each in self._aside))
        known = {**self._references, **references}
        live = (each for each in known.values() if each.place in places and each.target not in places)
        return Settled(self._identity, places, tuple(live))

    def references_aside(self) -> list[GenerationReference]:
        """Those in places that are not asked."""
        aside = {normalise(each.uri) for each in self._aside}
        return [each for each in self._references.values() if each.place in aside]

    def forget_references(self, gone: Iterable[GenerationReference]) -> None:
        for each in gone:
            self._references.pop(each[:2], None)

    def _fence_all(self, candidates: Sequence[Candidate], looks: Sequence[Attempt | Exception]) -> dict[str, Attempt]:
        """Those of this chain, as they are once nobody can add to them unnoticed, by place."""
        claimed = [
            look
            for candidate, look in zip(candidates, looks, strict=True)
            if isinstance(look, Attempt)
            and candidate.origin is not Origin.USER
            and not candidate.may_be_foreign  # another's may have our name, and be at work
            and look.log.claims
            and not look.log.is_fenced
        ][:_MOST_FENCED]
        if self._new_fence is None or not claimed:
            return {}
        with ThreadPoolExecutor(_FENCES_AT_ONCE, "chockstone-fence") as pool:
            return {fenced.place.uri: fenced for fenced in pool.map(self._fenced, claimed)}

    def _fenced(self, attempt: Attempt) -> Attempt:
        """A fence that fails costs a warning: ranking by attempt decides all the same."""
        if self._new_fence is None or not self._is_ours(attempt):
            return attempt
        try:
            return fence(attempt, self._new_fence())
        except Exception as error:  # noqa: BLE001  # recorded
            self._warn(f"{attempt.place.uri} could not be fenced: {error}")
            return attempt

    def _is_ours(self, attempt: Attempt) -> bool:
        for number in sorted(attempt.log.claims, reverse=True)[:_MOST_ASKED]:
            with suppress(Exception):  # who it is cannot be read: the one before tells, or nobody is fenced
                claim = attempt.claim(number)
                if claim is not None:
                    return dict(claim.identity) == self._identity
        return False

    def lineage(self, deadline: Deadline) -> list[Item]:
        """Places that the attempts seen so far were given, and nobody has looked at yet."""
        known = {normalise(each.uri) for each in self.candidates}
        given: list[Candidate] = []
        items: list[Item] = []
        for candidate in self.candidates:
            attempt = self.looked.get(normalise(candidate.uri))
            if attempt is None or candidate.origin is Origin.USER or attempt.place.uri in self._traced:
                continue
            self._traced.add(attempt.place.uri)
            try:
                uris = self._given_to(attempt, deadline, is_foreign=candidate.may_be_foreign)
            except Exception as error:  # noqa: BLE001  # what it was given may hold everything: judged by the walk
                items.append(Item(candidate, attempt, error=error))
                continue
            for uri, is_foreign in uris:
                if uri in known:
                    continue
                known.add(uri)
                if len(known) > MAX_CANDIDATES:
                    self.left_out += 1
                else:
                    given.append(Candidate(uri, Origin.LINEAGE, may_be_foreign=is_foreign))
        self.candidates += given
        return items + (self.items(given, deadline) if given else [])

    def vanished(self, items: Sequence[Item], walk: WalkBack[Item], deadline: Deadline) -> list[Item]:
        """Before zero: places of this chain whose records tell of a commit, and that hold none any more.

        And those that were too many to look at: they prove nothing.
        """
        if walk.ending is not Ending.FRESH:
            return []
        gone: list[Item] = []
        for item in items:
            if item.attempt is None or item.candidate.may_be_foreign or item.candidate.origin is Origin.USER:
                continue
            try:
                if not deadline.left:
                    raise deadline.trouble(item.attempt.place.uri)
                if (generation := item.attempt.vanished()) is None:
                    continue
                error: Exception = DamagedArchive(f"{generation.name} was committed here, by its records, and is gone")
            except Exception as trouble:  # noqa: BLE001  # judged by the walk
                error = trouble
            gone.append(replace(item, error=error))
        if self.left_out:
            why = f"{self.left_out} older places were not looked at: {MAX_CANDIDATES} at most are, and none holds any"
            gone.append(Item(self.candidates[-1], None, error=StoreUnreachable(why)))
        return gone

    def _given_to(self, attempt: Attempt, deadline: Deadline, *, is_foreign: bool) -> list[tuple[str, bool]]:
        """Each place, and whether another chain's is welcome there; newest claim first. Raises what reading raises."""
        given: list[tuple[str, bool]] = []
        for number in sorted({*attempt.log.claims, *attempt.log.seen}, reverse=True):
            if not deadline.left:
                raise deadline.trouble(attempt.place.uri)
            claim = attempt.claim(number)
            if claim is None:
                raise DamagedArchive(f"claim {number} of {attempt.place.uri} is gone, and with it where it came from")
            if claim.kind == "claim" and (is_foreign or dict(claim.identity) == self._identity):
                for uri in claim.given:
                    with suppress(ValueError):  # no place at all
                        given.append((normalise(uri), is_foreign or uri in claim.foreign))
        return given


def generations_of(candidate: Candidate, attempt: Attempt) -> list[Item]:
    if not attempt.generations:
        return [Item(candidate, attempt)]
    try:
        voids = attempt.voids()
    except Exception as error:  # noqa: BLE001  # judged where the walk comes to it
        return [Item(candidate, attempt, error=error)]
    return [Item(candidate, attempt, each, is_void=each in voids) for each in attempt.generations]


def _is_settled(attempt: Attempt, references: Container[tuple[str, str]]) -> bool:
    with suppress(Exception):  # then the next attempt looks there, too
        return attempt.is_settled(references)
    return False
