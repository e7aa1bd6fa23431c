"""The errors that gloo raises, made with two process groups in this process."""

from __future__ import annotations

import threading
from datetime import timedelta

import torch
import torch.distributed as distributed

_TIMEOUT = timedelta(seconds=30)


def errors_of_gloo() -> tuple[RuntimeError, RuntimeError]:
    """One of a receive that times out, and one of a receive from a peer that has closed its connection."""
    store = distributed.HashStore()
    groups: dict[int, distributed.ProcessGroupGloo] = {}

    def connect(rank: int, prefix: str) -> None:
        groups[rank] = distributed.ProcessGroupGloo(distributed.PrefixStore(prefix, store), rank, 2, _TIMEOUT)

    def connect_both(prefix: str) -> None:
        threads = [threading.Thread(target=connect, args=(rank, prefix)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    connect_both("timeout")
    timeout = _error_of_receive(groups[0], timedelta(seconds=0.2))
    groups.clear()
    connect_both("closed")
    del groups[1]
    closed = _error_of_receive(groups[0], timedelta(seconds=10))
    return timeout, closed


def _error_of_receive(group: distributed.ProcessGroupGloo, timeout: timedelta) -> RuntimeError:
    try:
        group.recv([torch.zeros(1)], 1, 0).wait(timeout)
    except RuntimeError as error:
        return error
    raise AssertionError("nothing was sent, and something was received")
