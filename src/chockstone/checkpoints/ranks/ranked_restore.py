"""Restores of several ranks: rank 0 chooses the archive, every rank reads its part, and all restore it or none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from chockstone.checkpoints.errors import DamagedArchive, RanksLost, RestoreFailed
from chockstone.checkpoints.ranks.peers import Json, PeerFailed, Peers, poll_seconds
from chockstone.checkpoints.restoring.receipt import RestoreReceipt, SkippedCandidate

_HALF_RESTORED: Final = "The target is half restored; do not use it."
Agree = Callable[[str], None]  # takes the seal of the archive; raises on all ranks if one cannot go on
Attempt = Callable[[str, Agree], RestoreReceipt]  # at the archive of that name
Walk = Callable[[Callable[[str], RestoreReceipt]], RestoreReceipt | None]  # None: nothing was ever saved


class RankedRestore:
    """One restore of all ranks: rank 0 leads, the others follow."""

    def __init__(self, peers: Peers, attempt: Attempt) -> None:
        self._peers = peers
        self._attempt = attempt

    def lead(self, walk: Walk) -> RestoreReceipt | None:
        """Return the receipt of ``walk``, which tries archives by name until one is restored; other ranks follow it."""
        try:
            receipt = walk(self._try)
        except RanksLost:
            raise
        except BaseException as error:
            self._peers.gather_and_decide(error=error)
            raise
        if receipt is None:
            self._peers.gather_and_decide(decide=lambda _: {"is_first_start": True})
            return None
        skipped = [(skip.name, skip.reason) for skip in receipt.skipped]
        steps_lost = receipt.steps_lost
        self._peers.gather_and_decide(decide=lambda _: {"skipped": skipped, "steps_lost": steps_lost})
        return receipt

    def follow(self) -> RestoreReceipt | None:
        """Follow rank 0: return the receipt of what this rank restored, or raise what rank 0 raised.

        None: rank 0 found that nothing was ever saved.
        """
        receipt: RestoreReceipt | None = None
        own: Exception | None = None  # of this rank; rank 0 got it and decides what follows
        while True:
            try:
                answer = self._peers.gather_and_decide()
            except PeerFailed as failed:
                raise failed.error(default=RestoreFailed) from own or failed
            if "is_first_start" in answer:
                return None
            if "name" not in answer:
                assert receipt is not None, "rank 0 takes what all have taken"
                skipped = tuple(SkippedCandidate(name, reason) for name, reason in answer["skipped"])
                return replace(receipt, skipped=skipped, steps_lost=answer["steps_lost"])
            try:
                receipt = self._attempt_together(answer["name"])
            except RanksLost:
                raise
            except Exception as error:  # noqa: BLE001  # the cause, if rank 0 gives up
                receipt, own = None, error

    def _try(self, name: str) -> RestoreReceipt:
        self._peers.gather_and_decide(decide=lambda _: {"name": name})
        return self._attempt_together(name)

    def _attempt_together(self, name: str) -> RestoreReceipt:
        """The same attempt on all ranks. All ranks make the same number of calls and end it alike, whatever fails."""
        is_over = False
        keep_alive = _KeepAlive(self._peers)

        def agree(seal: str) -> None:
            nonlocal is_over
            keep_alive.end()
            try:
                self._peers.gather_and_decide({"seal": seal}, _check_same_archive)
            except PeerFailed as failed:
                is_over = True
                raise failed.error(default=RestoreFailed) from failed
            except BaseException:
                is_over = True
                raise
            keep_alive.begin()

        try:
            receipt = self._attempt(name, agree)
            agree("")
        except RanksLost as lost:
            if keep_alive.has_begun:
                raise RanksLost(f"{lost} {_HALF_RESTORED}") from lost
            raise
        except BaseException as error:
            keep_alive.end()
            if not is_over:
                self._peers.gather_and_decide(error=error)
            raise
        return receipt


class _KeepAlive:
    """While ranks read, each sends in the background that it is alive, so that no read is too slow for the others."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._thread: threading.Thread | None = None
        self._has_read = threading.Event()
        self.has_begun = False

    def begin(self) -> None:
        """Has an effect once: nothing after the read takes long."""
        if not self.has_begun:
            self.has_begun = True
            self._thread = threading.Thread(target=self._keep, name="chockstone-keep_alive", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """This rank has read or failed; returns when all other ranks have, too."""
        if self._thread is not None:
            self._has_read.set()
            self._thread.join()
            self._thread = None

    def _keep(self) -> None:
        started = time.monotonic()
        is_over = False
        with suppress(RanksLost):  # the next gather_and_decide raises it again
            while not is_over:
                has_read = self._has_read.wait(poll_seconds(started))
                is_over = self._peers.gather_and_decide({"has_read": has_read}, _all_done)["is_over"]


def _all_done(messages: Sequence[Json]) -> Json:
    return {"is_over": all(message["has_read"] for message in messages)}


def _check_same_archive(messages: Sequence[Json]) -> Json:
    """A name may be overwritten while ranks open it, or be another file on another host."""
    for rank, message in enumerate(messages):
        if message["seal"] != messages[0]["seal"]:
            raise DamagedArchive(f"rank {rank} reads another archive than rank 0 under the same name")
    return {}
