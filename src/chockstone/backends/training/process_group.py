"""The process group: the processes that hold the base models together and compute in step.

For a single process every method is trivial. The ``announce_`` methods are called by the leader alone. Every other
method is a collective: all processes call it at the same point of the same task, and it returns or raises the same in
all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy.typing as npt
import torch

from chockstone.backends.channel import Message


class ProcessGroup(Protocol):
    @property
    def rank(self) -> int:
        """Rank of this process. Rank 0 is the leader: it has the channel to the server."""

    @property
    def size(self) -> int: ...

    def announce_call(self, message: Message) -> None:
        """The leader is about to start the call in this message."""

    def announce_turn(self, task: int | None) -> None:
        """The leader is about to give a turn to the task of that number; None: to generation."""

    def announce_end(self) -> None:
        """The leader has taken its last turn."""

    def raise_together(self, error: BaseException | None) -> None:
        """Raise in all processes what one of them met. An error that is no RequestError aborts the group."""

    def leaders_answer(self, answer: bool) -> bool:
        """The leader's ``answer``, in all processes."""

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        """Replace the tensor by its sum over all processes."""

    def gather(self, mine: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """The flat float64 tensors of all processes, on the CPU; ``sizes`` are their lengths, by rank."""

    def broadcast_arrays(self, *arrays: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
        """The leader's arrays. All processes pass arrays of the same shapes and types."""

    def abort(self, error: BaseException) -> None:
        """End this process, and so the group, for an error that the others did not meet. A single process continues."""


class SingleProcess:
    rank: Final = 0
    size: Final = 1

    def announce_call(self, message: Message) -> None:
        pass

    def announce_turn(self, task: int | None) -> None:
        pass

    def announce_end(self) -> None:
        pass

    def raise_together(self, error: BaseException | None) -> None:
        if error is not None:
            raise error

    def leaders_answer(self, answer: bool) -> bool:
        return answer

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        pass

    def gather(self, mine: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:  # noqa: ARG002  # one
        return [mine]

    def broadcast_arrays(self, *arrays: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
        return arrays

    def abort(self, error: BaseException) -> None:
        pass


SINGLE_PROCESS: Final = SingleProcess()
