"""Company: the other ranks, as a checkpointer has to do with them. Where there are none it does everything alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from chockstone.checkpoints.ranks.peers import Peers
from chockstone.checkpoints.ranks.ranked_restore import Attempt, RankedRestore
from chockstone.checkpoints.ranks.ranked_save import RankedSave, RankedSaveCache, decline
from chockstone.checkpoints.restoring.receipt import RestoreReceipt
from chockstone.checkpoints.saving.handle import SavedCheckpoint, SaveHandle
from chockstone.checkpoints.saving.job import SaveJob


class RankCoordinator:
    """For one thread at a time, but for ``decline``, which has its turn among the saves."""

    def __init__(self, *, ranks: Literal["auto", "off"], timeout_seconds: float) -> None:
        if ranks not in ("auto", "off"):
            raise ValueError(f"ranks={ranks!r}: choose 'auto' or 'off'")
        if not 0 < timeout_seconds < threading.TIMEOUT_MAX:
            raise ValueError(f"rank_timeout_seconds={timeout_seconds!r}: give a positive number of seconds")
        self._ranks = ranks
        self._timeout_seconds = timeout_seconds
        self._peers: Peers | None = None  # met at the first call
        self._kept = RankedSaveCache()

    @property
    def has_peers(self) -> bool:
        """Whether others have been met."""
        return self._peers is not None

    def meet(self) -> bool:
        """Meet the others at the first call, which all of them make; whether there are any."""
        if self._peers is None and self._ranks == "auto":
            self._peers = Peers.meet(timeout_seconds=self._timeout_seconds)
        return self.has_peers

    def place(self) -> dict[str, int]:
        """Of this rank among the others, for a snapshot."""
        return {} if self._peers is None else {"rank": self._peers.rank, "world_size": self._peers.world_size}

    def write(self, job: SaveJob) -> SavedCheckpoint:
        return job.run() if self._peers is None else RankedSave(job, self._peers, self._kept).run()

    def decline(self, error: BaseException, *, turn: SaveHandle, previous: SaveHandle | None) -> None:
        """Tell the others, when it is this save's turn, that this rank does not take part; they would wait for it."""
        peers = self._peers
        assert peers is not None

        def tell() -> None:
            if previous is not None:
                previous._wait()
            decline(peers, error)
            turn._fail(error, seen=True)

        threading.Thread(target=tell, name="chockstone-save", daemon=True).start()

    def restore(
        self, walk: Callable[[Callable[[str], RestoreReceipt]], RestoreReceipt], attempt: Attempt
    ) -> RestoreReceipt:
        """As rank 0 walks, where others have been met."""
        assert self._peers is not None
        together = RankedRestore(self._peers, attempt)
        return together.lead(walk) if self._peers.leads else together.follow()

    def close(self) -> None:
        if self._peers is not None:
            self._peers.close()
