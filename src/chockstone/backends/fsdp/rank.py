"""One rank of a process group that holds the base models together and works for one server."""

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
from chockstone.backends.fsdp.followers import FollowerBroadcast, FollowerTurns, connect_ranks
from chockstone.backends.fsdp.process_group import DistributedProcessGroup, ProcessGroupLost
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.backends.training.base_model import choose_device
from chockstone.backends.worker.compute_turns import TaskSource
from chockstone.backends.worker.service import WorkerService

_TIMEOUT_SECONDS: Final = 1800.0  # as long as a worker may be busy with one thing


class RankLost(RuntimeError):
    """The group has lost a process. End the other processes and start a new group."""


def run_rank(
    config: WorkerConfig,
    *,
    rank: int,
    world_size: int,
    rendezvous: str,
    server: socket.socket | None,
    timeout_seconds: float = _TIMEOUT_SECONDS,
) -> None:
    """Work until the server sends a stop, as one of ``world_size`` processes that all call this.

    ``rendezvous`` is tcp://host:port with a free port of the machine of rank 0. Only rank 0 has the channel to the
    ``server``. No collective may take longer than ``timeout_seconds``. Raises RankLost when the group is lost. Then
    the process must end soon, since threads of it may still wait for other ranks.
    """
    if (server is not None) != (rank == 0):
        raise ValueError(f"rank {rank} of {world_size}: rank 0, and no other, has the channel to the server")
    try:
        dist.init_process_group(  # NCCL and all other CUDA code of this room is not covered by tests
            "cpu:gloo,cuda:nccl" if choose_device(config.device) == "cuda" else "gloo",
            init_method=rendezvous,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_seconds),
        )
        channels = connect_ranks(urlsplit(rendezvous).hostname or "", timeout_seconds=timeout_seconds)
        if server is not None:
            _lead(config, BlockingChannel(server), channels)
        else:
            _follow(config, channels[0])
    except ProcessGroupLost as error:
        raise RankLost(str(error)) from error
    except (RuntimeError, OSError) as error:  # the group could not be made, or lost a process
        raise RankLost(f"rank {rank}: {type(error).__name__}: {error}") from error
    dist.destroy_process_group()


def _lead(config: WorkerConfig, server: BlockingChannel, followers: list[BlockingChannel]) -> None:
    broadcast = FollowerBroadcast(followers)
    process_group = DistributedProcessGroup(broadcast)
    service = WorkerService(
        config,
        server,
        on_orphaned=lambda: service.post(_lost("the server")),
        process_group=process_group,
        load=partial(load_sharded_base, process_group=process_group),
    )
    broadcast.watch(on_lost=lambda: service.post(_lost("a follower")))
    service.run()


def _follow(config: WorkerConfig, leader: BlockingChannel) -> None:
    process_group = DistributedProcessGroup(None)

    def schedule(source: TaskSource, take: Callable[[Message], None]) -> FollowerTurns:
        turns = FollowerTurns(source, take)
        threading.Thread(target=_listen, args=[leader, turns], name="leader", daemon=True).start()
        return turns

    WorkerService(
        config,
        None,
        on_orphaned=lambda: None,
        process_group=process_group,
        load=partial(load_sharded_base, process_group=process_group),
        schedule=schedule,
    ).run()


def _listen(leader: BlockingChannel, turns: FollowerTurns) -> None:
    try:
        while True:
            message = leader.receive()
            turns.enqueue(message)
            if "over" in message.values:
                return
    except ChannelClosed:
        turns.post(_lost("the leader"))
        turns.enqueue(Message({"turn": None}))  # wakes the compute thread, which runs posted actions first


def _lost(peer: str) -> Callable[[], None]:
    def raise_lost() -> None:
        raise ProcessGroupLost(f"{peer} is gone")

    return raise_lost
