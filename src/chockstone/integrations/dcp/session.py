"""Sessions: what saves and loads of one process keep from call to call.

DCP makes a new writer for each save. The connection to the other ranks, the host buffer that states are copied into and
the plan of who writes what outlive it here, one session for each set of ranks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import torch.distributed as distributed

from chockstone.checkpoints.ranks.peers import Peers
from chockstone.checkpoints.ranks.ranked_save import RankedSaveCache
from chockstone.checkpoints.saving.clock import Clock
from chockstone.checkpoints.saving.snapshot import Snapshotter
from chockstone.integrations.dcp.staging import free_stagers


class RankPlan(NamedTuple):
    """What this library adds to a plan of DCP: the rank that made it, then all ranks of the operation."""

    ranks: tuple[int, ...]  # of torch.distributed, in the order of DCP's process group


class RankSession:
    """Use it under its lock: one save or load at a time."""

    def __init__(self, world: Any, ranks: tuple[int, ...], *, timeout_seconds: float) -> None:
        """``world``: the default process group, which the connection ends with; None without one."""
        self.world = world
        self.lock = threading.Lock()
        self.clock = Clock(lambda: datetime.now(UTC))
        self.cache = RankedSaveCache()
        self.snapshotter = Snapshotter()
        self.seen_places: set[tuple[str, str]] = set()  # stores and prefixes that were saved to
        self.peers = Peers.connect(timeout_seconds=timeout_seconds, ranks=ranks) if len(ranks) > 1 else None

    @property
    def rank(self) -> int:
        return 0 if self.peers is None else self.peers.rank

    @property
    def world_size(self) -> int:
        return 1 if self.peers is None else self.peers.world_size

    def close(self) -> None:
        if self.peers is not None:
            self.peers.close()


_sessions: dict[tuple[int, ...], RankSession] = {}
_lock: Final = threading.Lock()


def own_rank() -> int:
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def common_plan(plans: Sequence[Any]) -> RankPlan:  # Any: a SavePlan or a LoadPlan
    """On the coordinator: the ranks of an operation, from the plan of each of them."""
    if len(plans) == 1:
        return RankPlan(())
    own = [plan.storage_data for plan in plans]
    if all(isinstance(each, RankPlan) for each in own):
        return RankPlan(tuple(rank for each in own for rank in each.ranks))
    return RankPlan(tuple(range(len(plans))))  # a planner dropped what ``prepare_local_plan`` added


def session_of(ranks: tuple[int, ...], *, timeout_seconds: float) -> RankSession:
    """The session of these ranks; the first call connects them, so all of them make it.

    A session whose ranks were lost is replaced, as is one of a process group that was destroyed.
    """
    world = distributed.group.WORLD if len(ranks) > 1 else None
    with _lock:
        session = _sessions.get(ranks)
        is_usable = session is not None and session.world is world and not (session.peers and session.peers.is_over)
        if session is None or not is_usable:
            if session is not None:
                session.close()
            session = _sessions[ranks] = RankSession(world, ranks, timeout_seconds=timeout_seconds)
    return session


def release_buffers() -> None:
    """Free the host memory that the next save would reuse: the size of the state, twice that after ``async_save``."""
    free_stagers()
    with _lock:
        for session in _sessions.values():
            with session.lock:
                session.snapshotter = Snapshotter()
                session.cache = RankedSaveCache()


os.register_at_fork(after_in_child=_sessions.clear)
