"""The crew: the processes that hold the base models between them and compute in step.

One process alone is a crew of one, for which all of this is nothing. What the leader only tells is
for it to call; every other method is called by all of them at the same point of the same task, and
what it returns or raises is the same for all.
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
        """Of this process. Rank 0 leads: it has the channel to the server."""

    @property
    def size(self) -> int: ...

    def tell(self, message: Message) -> None:
        """The leader is about to take this message."""

    def tell_turn(self, task: int | None) -> None:
        """The leader is about to give a turn to the task of that number; None: to generation."""

    def dismiss(self) -> None:
        """The leader has taken its last turn."""

    def agree(self, error: BaseException | None) -> None:
        """Raises on all what one of them met. Only a RequestError may be agreed on; others end the crew."""

    def decide(self, answer: bool) -> bool:
        """The leader's answer."""

    def add(self, tensor: torch.Tensor) -> None:
        """The sum over all, in place."""

    def gather(self, mine: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Everybody's flat float64 tensor, on the CPU; ``sizes`` are their lengths, by rank."""

    def same(self, *arrays: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
        """The leader's, which have the same shapes and types everywhere."""

    def lose(self, error: BaseException) -> None:
        """What happened here did not happen to the others. Ends this process, and so the crew, unless it is one."""


class SingleProcess:
    rank: Final = 0
    size: Final = 1

    def tell(self, message: Message) -> None:
        pass

    def tell_turn(self, task: int | None) -> None:
        pass

    def dismiss(self) -> None:
        pass

    def agree(self, error: BaseException | None) -> None:
        if error is not None:
            raise error

    def decide(self, answer: bool) -> bool:
        return answer

    def add(self, tensor: torch.Tensor) -> None:
        pass

    def gather(self, mine: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:  # noqa: ARG002  # one
        return [mine]

    def same(self, *arrays: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
        return arrays

    def lose(self, error: BaseException) -> None:
        pass


ALONE: Final = SingleProcess()
