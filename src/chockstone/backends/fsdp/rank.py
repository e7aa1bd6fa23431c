"""One rank: a process of a group that holds the base models between them and works for one server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import torch.distributed as dist

from chockstone.backends.channel import BlockingChannel, ChannelClosed, Message
from chockstone.backends.fsdp.base_model import load_sharded_base
from chockstone.backends.fsdp.follower_broadcast import FollowerBroadcast
from chockstone.backends.fsdp.follower_channels import meet
from chockstone.backends.fsdp.follower_turns import FollowerTurns
from chockstone.backends.fsdp.process_group import DistributedProcessGroup, ProcessGroupLost
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.backends.training.base_model import choose_device
from chockstone.backends.worker.compute_turns import TaskSource
from chockstone.backends.worker.service import WorkerService

_TIMEOUT_SECONDS: Final = 1800.0  # as long as a worker may be busy with one thing


class RankLost(RuntimeError):
    """The group is no longer whole; its processes are to be ended, and a new one made."""


def run_rank(
    config: WorkerConfig,
    *,
    rank: int,
    world_size: int,
    rendezvous: str,
    server: socket.socket | None,
    timeout_seconds: float = _TIMEOUT_SECONDS,
) -> None:
    """Work until the server says stop, as one of ``world_size`` processes that all call this.

    ``rendezvous`` is tcp://host:port, a free port where rank 0 runs. Rank 0 has the channel to the ``server``; the
    others have none. No collective may take longer than ``timeout_seconds``. Raises RankLost when the group is lost:
    then the process must end soon, for threads of it may still wait for others.
    """
    if (server is not None) != (rank == 0):
        raise ValueError(f"rank {rank} of {world_size}: rank 0, and no other, has the channel to the server")
    try:
        dist.init_process_group(  # NCCL, as all that is said of CUDA in this room: written, and never run by our tests
            "cpu:gloo,cuda:nccl" if choose_device(config.device) == "cuda" else "gloo",
            init_method=rendezvous,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_seconds),
        )
        channels = meet(urlsplit(rendezvous).hostname or "", timeout_seconds=timeout_seconds)
        if server is not None:
            _lead(config, BlockingChannel(server), channels)
        else:
            _follow(config, channels[0])
    except ProcessGroupLost as error:
        raise RankLost(str(error)) from error
    except (RuntimeError, OSError) as error:  # of the group's making, or what became of it
        raise RankLost(f"rank {rank}: {type(error).__name__}: {error}") from error
    dist.destroy_process_group()


def _lead(config: WorkerConfig, server: BlockingChannel, followers: list[BlockingChannel]) -> None:
    herald = FollowerBroadcast(followers)
    crew = DistributedProcessGroup(herald)
    workshop = WorkerService(
        config,
        server,
        on_orphaned=lambda: workshop.post(_lost("the server")),
        crew=crew,
        load=partial(load_sharded_base, crew=crew),
    )
    herald.watch(on_lost=lambda: workshop.post(_lost("a follower")))
    workshop.run()


def _follow(config: WorkerConfig, leader: BlockingChannel) -> None:
    crew = DistributedProcessGroup(None)

    def schedule(source: TaskSource, take: Callable[[Message], None]) -> FollowerTurns:
        turns = FollowerTurns(source, take)
        threading.Thread(target=_listen, args=[leader, turns], name="leader", daemon=True).start()
        return turns

    WorkerService(
        config, None, on_orphaned=lambda: None, crew=crew, load=partial(load_sharded_base, crew=crew), schedule=schedule
    ).run()


def _listen(leader: BlockingChannel, turns: FollowerTurns) -> None:
    try:
        while True:
            order = leader.receive()
            turns.order(order)
            if "over" in order.values:
                return
    except ChannelClosed:
        turns.post(_lost("the leader"))
        turns.order(Message({"turn": None}))  # to wake it up: what is posted comes first


def _lost(whom: str) -> Callable[[], None]:
    def raise_it() -> None:
        raise ProcessGroupLost(f"{whom} is gone")

    return raise_it
