"""A process group over torch.distributed. Only tensors travel, never pickled objects."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import orjson
import torch
import torch.distributed as dist

from chockstone.backends.calls import decode_error, encode_error
from chockstone.backends.channel import Message
from chockstone.backends.fsdp.followers import FollowerBroadcast
from chockstone.wire.failures import RequestError

log = logging.getLogger(__name__)


class ProcessGroupLost(BaseException):
    """This process and the others are no longer in step.

    It is no Exception, so that no handler in between takes it for a failed request.
    """


class DistributedProcessGroup:
    """The default process group of torch.distributed, which has gloo for tensors on the CPU."""

    def __init__(self, broadcast: FollowerBroadcast | None) -> None:
        """``broadcast``: to the followers; None in a follower."""
        self._broadcast = broadcast
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def announce_call(self, message: Message) -> None:
        if self._broadcast is not None:
            self._broadcast.send_call(message)

    def announce_turn(self, task: int | None) -> None:
        if self._broadcast is not None:
            self._broadcast.send_turn(task)

    def announce_end(self) -> None:
        if self._broadcast is not None:
            self._broadcast.send_end()

    def raise_together(self, error: BaseException | None) -> None:
        mine = b""
        if isinstance(error, RequestError):
            mine = orjson.dumps(encode_error(error))
        elif error is not None:
            self.abort(error)
        lengths = [int(length) for length in self.gather(torch.tensor([len(mine)]).double(), [1] * self.size)]
        if not any(lengths):
            return
        first = next(rank for rank, length in enumerate(lengths) if length)
        encoded = torch.zeros(lengths[first], dtype=torch.uint8)
        if first == self.rank:
            encoded = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        dist.broadcast(encoded, first)
        raise decode_error(orjson.loads(bytes(encoded.numpy())))

    def leaders_answer(self, answer: bool) -> bool:
        decided = torch.tensor([answer], dtype=torch.uint8)
        dist.broadcast(decided, 0)
        return bool(decided)

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)

    def gather(self, mine: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        padded = torch.zeros(max(sizes), dtype=torch.float64)
        padded[: len(mine)] = mine
        theirs = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(theirs, padded)
        return [tensor[:size] for tensor, size in zip(theirs, sizes, strict=True)]

    def broadcast_arrays(self, *arrays: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
        tensors = [torch.from_numpy(array) for array in arrays]
        for tensor in tensors:
            dist.broadcast(tensor, 0)
        return tuple(tensor.numpy() for tensor in tensors)

    def abort(self, error: BaseException) -> None:
        log.error("rank lost rank=%d error=%s\n%s", self.rank, error, traceback.format_exc())
        raise ProcessGroupLost(f"rank {self.rank}: {type(error).__name__}: {error}") from error
