"""Restoring together: rank 0 says which archive is tried, every rank reads its part of it, and all take it or none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from chockstone.checkpoints.errors import DamagedArchive, RanksLost, RestoreFailed
from chockstone.checkpoints.ranks.peers import Json, PeerFailed, Peers, pause_seconds
from chockstone.checkpoints.restoring.receipt import RestoreReceipt, SkippedCandidate

_HALF_RESTORED: Final = "The target is half restored; do not go on with it."
Agree = Callable[[str], None]  # takes the seal of the archive; raises on all ranks if one cannot go on
Attempt = Callable[[str, Agree], RestoreReceipt]  # at the archive of that name


class RankedRestore:
    """One restore of all ranks: rank 0 leads, the others follow."""

    def __init__(self, peers: Peers, attempt: Attempt) -> None:
        self._peers = peers
        self._attempt = attempt

    def lead(self, walk: Callable[[Callable[[str], RestoreReceipt]], RestoreReceipt]) -> RestoreReceipt:
        """What ``walk`` gives, which tries archives by name until it takes one or raises; the others do as it does."""
        try:
            receipt = walk(self._try)
        except RanksLost:
            raise
        except BaseException as error:
            self._peers.confer(error=error)
            raise
        skipped = [(skip.name, skip.reason) for skip in receipt.skipped]
        self._peers.confer(decide=lambda _: {"skipped": skipped, "steps_lost": receipt.steps_lost})
        return receipt

    def follow(self) -> RestoreReceipt:
        """As rank 0 leads: the receipt for what this rank restored, or what rank 0 raised."""
        receipt: RestoreReceipt | None = None
        own: Exception | None = None  # what went wrong here; rank 0 knows of it, and decides what comes of it
        while True:
            try:
                told = self._peers.confer()
            except PeerFailed as failed:
                raise failed.error(otherwise=RestoreFailed) from own or failed
            if "name" not in told:
                assert receipt is not None, "rank 0 takes what all have taken"
                skipped = tuple(SkippedCandidate(name, reason) for name, reason in told["skipped"])
                return replace(receipt, skipped=skipped, steps_lost=told["steps_lost"])
            try:
                receipt = self._together(told["name"])
            except RanksLost:
                raise
            except Exception as error:  # noqa: BLE001  # raised from, should rank 0 give up
                receipt, own = None, error

    def _try(self, name: str) -> RestoreReceipt:
        self._peers.confer(decide=lambda _: {"name": name})
        return self._together(name)

    def _together(self, name: str) -> RestoreReceipt:
        """The same attempt on all ranks. However it ends here, all meet equally often and end it alike."""
        is_over = False
        vigil = _Vigil(self._peers)

        def agree(seal: str) -> None:
            nonlocal is_over
            vigil.end()
            try:
                self._peers.confer({"seal": seal}, _refuse_others)
            except PeerFailed as failed:
                is_over = True
                raise failed.error(otherwise=RestoreFailed) from failed
            except BaseException:
                is_over = True
                raise
            vigil.begin()

        try:
            receipt = self._attempt(name, agree)
            agree("")
        except RanksLost as lost:
            if vigil.has_begun:
                raise RanksLost(f"{lost} {_HALF_RESTORED}") from lost
            raise
        except BaseException as error:
            vigil.end()
            if not is_over:
                self._peers.confer(error=error)
            raise
        return receipt


class _Vigil:
    """After they have agreed to read, ranks say again and again that they live, until all have ended. So it may take
    any of them as long as it likes."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._thread: threading.Thread | None = None
        self._has_read = threading.Event()
        self.has_begun = False

    def begin(self) -> None:
        """The first time only: after the reading there is nothing that takes long."""
        if not self.has_begun:
            self.has_begun = True
            self._thread = threading.Thread(target=self._keep, name="chockstone-vigil", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """This rank has read, or failed to; returns when all others have, too."""
        if self._thread is not None:
            self._has_read.set()
            self._thread.join()
            self._thread = None

    def _keep(self) -> None:
        started = time.monotonic()
        is_over = False
        with suppress(RanksLost):  # whoever confers next hears of it
            while not is_over:
                has_read = self._has_read.wait(pause_seconds(started))
                is_over = self._peers.confer({"has_read": has_read}, _look_round)["is_over"]


def _look_round(heard: Sequence[Json]) -> Json:
    return {"is_over": all(said["has_read"] for said in heard)}


def _refuse_others(heard: Sequence[Json]) -> Json:
    """A name may be overwritten while ranks open it, or mean another file to another host."""
    for rank, said in enumerate(heard):
        if said["seal"] != heard[0]["seal"]:
            raise DamagedArchive(f"rank {rank} reads another archive than rank 0 under the same name")
    return {}
