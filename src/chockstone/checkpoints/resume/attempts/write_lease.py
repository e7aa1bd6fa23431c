"""Fencing: the right to write in a place, held by one incarnation at a time.

``WriteLease`` is ours, from claim to close. A store seen through it refuses to commit once someone newer has
claimed the place; what slips in between is void to every reader, so the outcome is the same either way.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from chockstone.checkpoints.errors import DamagedArchive, StoreUnreachable, Superseded
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.claims import CLAIMS, Claim, ClaimLog, Kind, Seen, claim_record, seen_record
from chockstone.checkpoints.resume.attempts.places import AttemptPlace
from chockstone.checkpoints.stores.store import ArchiveSource, PartialWrite, SharedSink, Sink, Store, StoreEntry

log = logging.getLogger(__name__)
_TRIES: Final = 20  # at a number that another process takes first


class WriteLease:
    """Our right to write in our own place."""

    def __init__(self, place: AttemptPlace, number: int, attempt: Attempt) -> None:
        self.place = place
        self.number = number  # of our claim, which is our incarnation
        self.attempt = attempt  # the place as it was when the claim was in force
        self.is_lost = False  # as far as is known

    @classmethod
    def claim(cls, attempt: Attempt, claim: Claim) -> WriteLease:
        """Enter the log after what a listing showed. Raises Superseded where a later attempt has shut the place."""
        _refuse_fenced(attempt)
        number = _enter(attempt, claim)
        if number > 1:  # nobody can have committed where nobody had claimed
            attempt = Attempt.look(attempt.place)
        _record_seen(attempt, number, "claim")
        return cls(attempt.place, number, attempt)

    def check(self) -> None:
        """Raise Superseded if someone newer holds the place. One small request."""
        self.is_lost = self.is_lost or self._is_taken()
        if self.is_lost:
            raise Superseded(
                f"{self.place.uri} has been taken over by a later attempt or a restart of this one; stop this process: "
                "what it saves would never be used"
            )

    def _is_taken(self) -> bool:
        return ClaimLog.of(self.place.records(CLAIMS)).last > self.number


def fence(attempt: Attempt, claim: Claim) -> Attempt:
    """Shut an earlier attempt: nothing that is committed there from now on counts. Raises StoreError.

    Returns the attempt as it is from now on: what was listed once the entry was in force, which the fence has seen.
    """
    number = _enter(attempt, claim)
    found = Attempt.look(attempt.place)
    _record_seen(found, number, "fence")
    stock = () if found.generations else attempt.stock
    return replace(found, log=replace(found.log, is_fenced=True), stock=stock)


def _enter(attempt: Attempt, claim: Claim) -> int:
    place, number = attempt.place, attempt.last + 1
    for _ in range(_TRIES):
        if place.put_if_absent(claim_record(number), claim.encode()):
            return number
        fresh = Attempt.look(place)
        if (there := _claim_of(fresh, number)) is not None and there.nonce == claim.nonce:
            return number  # ours: the answer to the request that made it was lost
        if claim.kind == "claim":
            _refuse_fenced(fresh)
        number = max(fresh.last, number) + 1
    raise StoreUnreachable(f"cannot claim {place.uri}: {_TRIES} numbers were taken by others meanwhile; try again")


def _refuse_fenced(attempt: Attempt) -> None:
    last = _claim_of(attempt, attempt.log.last) if attempt.log.last else None
    if attempt.log.is_fenced or (last is not None and last.kind == "fence"):
        by = f" by {last.by}" if last is not None and last.kind == "fence" else ""
        raise Superseded(
            f"{attempt.place.uri} was shut{by}: a later attempt of this chain has begun; stop this process, or start "
            "it as a new attempt"
        )


def _claim_of(attempt: Attempt, number: int) -> Claim | None:
    """One that is damaged is not ours and shuts nothing: fences are told by the record beside them, too."""
    try:
        return attempt.claim(number)
    except DamagedArchive as error:
        log.warning("resume record ignored place=%s error=%s", attempt.place.uri, error)
        return None


def _record_seen(attempt: Attempt, number: int, kind: Kind) -> None:
    newest = attempt.newest_valid()
    attempt.place.put_if_absent(seen_record(number, kind), Seen(newest).encode())


def new_claim(
    kind: Kind,
    *,
    by: str,
    attempt: int | None,
    identity: Mapping[str, str],
    given: tuple[str, ...],
    foreign: tuple[str, ...],
    had_stock: bool,
) -> Claim:
    return Claim(kind, by, attempt, secrets.token_hex(8), dict(identity), given, foreign, had_stock)


class FencedStore:
    """The store of a tenure: what is begun here is committed only while the tenure lasts."""

    def __init__(self, store: Store, tenure: WriteLease, on_commit: Callable[[], object] = lambda: None) -> None:
        """``on_commit`` is called after each commit that counts, in the thread that made it."""
        self._store = store
        self._tenure = tenure
        self._on_commit = on_commit

    @property
    def url(self) -> str:
        return self._store.url

    def begin(self, name: str, size: int) -> Sink:
        return _FencedSink(self._store.begin(name, size), self._tenure, self._on_commit)

    def join(self, name: str, size: int, ticket: str) -> SharedSink:
        return self._store.join(name, size, ticket)  # the owner's commit asks for the tenure

    def unit_bytes(self, size: int) -> int:
        return self._store.unit_bytes(size)

    def open(self, name: str) -> ArchiveSource:
        return self._store.open(name)

    def entries(self, prefix: str = "") -> Iterator[StoreEntry]:
        return self._store.entries(prefix)

    def stat(self, name: str) -> StoreEntry:
        return self._store.stat(name)

    def delete(self, name: str) -> bool:
        return self._store.delete(name)

    def copy(self, name: str, target: str, *, overwrite: bool = False) -> None:
        self._tenure.check()
        self._store.copy(name, target, overwrite=overwrite)
        self._tenure.check()

    def free_bytes(self) -> int | None:
        return self._store.free_bytes()

    def sweep(self, *, min_age_seconds: float = 0.0, dry_run: bool = False) -> list[PartialWrite]:
        return self._store.sweep(min_age_seconds=min_age_seconds, dry_run=dry_run)


class _FencedSink:
    def __init__(self, sink: Sink, tenure: WriteLease, on_commit: Callable[[], object]) -> None:
        self._sink = sink
        self._tenure = tenure
        self._on_commit = on_commit

    def write_at(self, offset: int, data: memoryview) -> None:
        self._sink.write_at(offset, data)

    def share(self) -> str:
        return self._sink.share()

    def settle(self, receipts: Sequence[str]) -> None:
        self._sink.settle(receipts)

    def commit(self, *, overwrite: bool) -> None:
        self._tenure.check()
        self._sink.commit(overwrite=overwrite)
        self._tenure.check()  # committed too late is not acknowledged, and void to all who look
        self._on_commit()

    def abort(self) -> None:
        self._sink.abort()
