"""Write leases and fences: only one incarnation at a time may write in a place.

``WriteLease`` lasts from our claim until a newer entry. ``FencedStore`` checks the lease before and after each commit.
Readers treat a commit after the end of the lease as superseded, so the result does not depend on the race.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from chockstone.checkpoints.errors import DamagedArchive, StoreUnreachable, Superseded
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.claims import (
    CLAIMS,
    Claim,
    ClaimLog,
    Kind,
    NewestCommit,
    claim_record,
    newest_commit_record,
)
from chockstone.checkpoints.resume.attempts.places import AttemptPlace
from chockstone.checkpoints.stores.store import ArchiveSource, PartialWrite, SharedSink, Sink, Store, StoreEntry

log = logging.getLogger(__name__)
_TRIES: Final = 20  # if other processes take the numbers first


class WriteLease:
    """The lease of this process on its own place."""

    def __init__(self, place: AttemptPlace, number: int, attempt: Attempt) -> None:
        self.place = place
        self.number = number  # of our claim, which is also our incarnation
        self.attempt = attempt  # the place after our claim was written
        self.is_lost = False  # as of the last check

    @classmethod
    def claim(cls, attempt: Attempt, claim: Claim) -> WriteLease:
        """Write a claim after the entries of ``attempt``. Raises Superseded if a later attempt fenced the place."""
        _refuse_fenced(attempt)
        number = _enter(attempt, claim)
        if number > 1:  # without an earlier claim there is no commit
            attempt = Attempt.inspect(attempt.place)
        _record_newest_commit(attempt, number, "claim")
        return cls(attempt.place, number, attempt)

    def check(self) -> None:
        """Raise Superseded if the place has a newer entry. One small request."""
        self.is_lost = self.is_lost or self._is_taken()
        if self.is_lost:
            raise Superseded(
                f"{self.place.uri} has been taken over by a later attempt or a restart of this one; stop this process: "
                "what it saves would never be used"
            )

    def _is_taken(self) -> bool:
        return ClaimLog.of(self.place.records(CLAIMS)).last > self.number


def fence(attempt: Attempt, claim: Claim) -> Attempt:
    """Fence an earlier attempt: readers ignore later commits there. Raises StoreError.

    Returns the attempt as listed after the fence was written. The fence records its newest commit.
    """
    number = _enter(attempt, claim)
    found = Attempt.inspect(attempt.place)
    _record_newest_commit(found, number, "fence")
    flyte_native = () if found.generations else attempt.flyte_native
    return replace(found, log=replace(found.log, is_fenced=True), flyte_native=flyte_native)


def _enter(attempt: Attempt, claim: Claim) -> int:
    place, number = attempt.place, attempt.last + 1
    for _ in range(_TRIES):
        if place.put_if_absent(claim_record(number), claim.encode()):
            return number
        fresh = Attempt.inspect(place)
        if (there := _claim_of(fresh, number)) is not None and there.nonce == claim.nonce:
            return number  # ours: the answer to an earlier try was lost
        if claim.kind == "claim":
            _refuse_fenced(fresh)
        number = max(fresh.last, number) + 1
    raise StoreUnreachable(f"cannot claim {place.uri}: other processes took {_TRIES} numbers meanwhile; try again")


def _refuse_fenced(attempt: Attempt) -> None:
    last = _claim_of(attempt, attempt.log.last) if attempt.log.last else None
    if attempt.log.is_fenced or (last is not None and last.kind == "fence"):
        by = f" by {last.by}" if last is not None and last.kind == "fence" else ""
        raise Superseded(
            f"{attempt.place.uri} was fenced{by}: a later attempt of this chain has started; stop this process, or "
            "start it as a new attempt"
        )


def _claim_of(attempt: Attempt, number: int) -> Claim | None:
    """Return None for a damaged claim: it is not ours, and the record beside a fence shows the fence as well."""
    try:
        return attempt.claim(number)
    except DamagedArchive as error:
        log.warning("resume record ignored place=%s error=%s", attempt.place.uri, error)
        return None


def _record_newest_commit(attempt: Attempt, number: int, kind: Kind) -> None:
    newest = attempt.newest_valid()
    attempt.place.put_if_absent(newest_commit_record(number, kind), NewestCommit(newest).encode())


def new_claim(
    kind: Kind,
    *,
    by: str,
    attempt: int | None,
    identity: Mapping[str, str],
    given: tuple[str, ...],
    foreign: tuple[str, ...],
    had_flyte_native: bool,
) -> Claim:
    return Claim(kind, by, attempt, secrets.token_hex(8), dict(identity), given, foreign, had_flyte_native)


class FencedStore:
    """A store that commits only while the lease lasts."""

    def __init__(self, store: Store, lease: WriteLease, on_commit: Callable[[], object] = lambda: None) -> None:
        """``on_commit`` is called after each successful commit, in the thread that made it."""
        self._store = store
        self._lease = lease
        self._on_commit = on_commit

    @property
    def url(self) -> str:
        return self._store.url

    def begin(self, name: str, size: int) -> Sink:
        return _FencedSink(self._store.begin(name, size), self._lease, self._on_commit)

    def join(self, name: str, size: int, ticket: str) -> SharedSink:
        return self._store.join(name, size, ticket)  # the owner's commit checks the lease

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
        self._lease.check()
        self._store.copy(name, target, overwrite=overwrite)
        self._lease.check()

    def free_bytes(self) -> int | None:
        return self._store.free_bytes()

    def sweep(self, *, min_age_seconds: float = 0.0, dry_run: bool = False) -> list[PartialWrite]:
        return self._store.sweep(min_age_seconds=min_age_seconds, dry_run=dry_run)


class _FencedSink:
    def __init__(self, sink: Sink, lease: WriteLease, on_commit: Callable[[], object]) -> None:
        self._sink = sink
        self._lease = lease
        self._on_commit = on_commit

    def write_at(self, offset: int, data: memoryview) -> None:
        self._sink.write_at(offset, data)

    def share(self) -> str:
        return self._sink.share()

    def settle(self, receipts: Sequence[str]) -> None:
        self._sink.settle(receipts)

    def commit(self, *, overwrite: bool) -> None:
        self._lease.check()
        self._sink.commit(overwrite=overwrite)
        self._lease.check()  # a commit after the end of the lease is not acknowledged, and superseded to readers
        self._on_commit()

    def abort(self) -> None:
        self._sink.abort()
