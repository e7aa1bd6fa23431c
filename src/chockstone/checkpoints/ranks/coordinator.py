"""The rank coordinator: saves and restores of a checkpointer together with the other ranks, or alone without them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal

from chockstone.checkpoints.ranks.peers import Peers
from chockstone.checkpoints.ranks.ranked_restore import Attempt, RankedRestore, Walk
from chockstone.checkpoints.ranks.ranked_save import RankedSave, RankedSaveCache, decline
from chockstone.checkpoints.restoring.receipt import RestoreReceipt
from chockstone.checkpoints.runtime.threads import lower_priority
from chockstone.checkpoints.saving.handle import SavedCheckpoint, SaveHandle
from chockstone.checkpoints.saving.job import SaveJob


class RankCoordinator:
    """One thread at a time may use it; ``decline`` waits for its turn among the saves."""

    def __init__(self, *, ranks: Literal["auto", "off"], timeout_seconds: float) -> None:
        if ranks not in ("auto", "off"):
            raise ValueError(f"ranks={ranks!r}: choose 'auto' or 'off'")
        if not 0 < timeout_seconds < threading.TIMEOUT_MAX:
            raise ValueError(f"rank_timeout_seconds={timeout_seconds!r}: give a positive number of seconds")
        self._ranks = ranks
        self._timeout_seconds = timeout_seconds
        self._peers: Peers | None = None  # connected by the first call
        self._cache = RankedSaveCache()

    @property
    def has_peers(self) -> bool:
        """Whether other ranks are connected."""
        return self._peers is not None

    def connect(self) -> bool:
        """Connect to the other ranks at the first call, which all of them make; whether there are any."""
        if self._peers is None and self._ranks == "auto":
            self._peers = Peers.connect(timeout_seconds=self._timeout_seconds)
        return self.has_peers

    def rank_arguments(self) -> dict[str, int]:
        """Rank and world size, as arguments of ``Snapshotter.take``."""
        return {} if self._peers is None else {"rank": self._peers.rank, "world_size": self._peers.world_size}

    def write(self, job: SaveJob) -> SavedCheckpoint:
        """Write with low priority. A quick plan has normal priority, because the disk is idle until it is made."""
        if self._peers is None and job.plans_quickly:
            return job.run(on_planned=lower_priority)
        lower_priority()
        return job.run() if self._peers is None else RankedSave(job, self._peers, self._cache).run()

    def decline(self, error: BaseException, *, turn: SaveHandle, previous: Sequence[SaveHandle]) -> None:
        """When it is this save's turn, tell the other ranks that this rank does not take part, so that none waits."""
        peers = self._peers
        assert peers is not None

        def send() -> None:
            for handle in previous:
                handle._wait()
            decline(peers, error)
            turn._fail(error, seen=True)

        threading.Thread(target=send, name="chockstone-save", daemon=True).start()

    def restore(self, walk: Walk, attempt: Attempt) -> RestoreReceipt | None:
        """Restore what rank 0 chooses. ``walk`` tries archives until one is restored; other ranks must be connected."""
        assert self._peers is not None
        together = RankedRestore(self._peers, attempt)
        return together.lead(walk) if self._peers.is_leader else together.follow()

    def close(self) -> None:
        if self._peers is not None:
            self._peers.close()
