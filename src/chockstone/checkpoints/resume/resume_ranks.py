"""Ranks of one training: they take one common decision, and either all of them continue or none does.

Rank 0 scans, claims and saves, and tells the others what to restore. Messages go through torch.distributed as bytes,
never as objects, which would be unpickled. Imports torch only if there is more than one process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chockstone.checkpoints.errors import ResumeError
from chockstone.checkpoints.ranks.error_codec import decode_error, encode_error
from chockstone.checkpoints.ranks.peers import rank_and_world_size

if TYPE_CHECKING:
    import torch

_MAX_REASON_BYTES = 2000


@dataclass(frozen=True, slots=True)
class ResumeRanks:
    """This process among ``world_size``. All ranks must call the same methods in the same order: they are collectives.

    A single process needs no torch: ``decide`` is a plain call, ``share`` returns its argument, and ``all_agree``
    raises for this process only.
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ResumeError(f"rank {self.rank!r} is not one of a world of {self.world_size!r}, which counts from 0.")

    @classmethod
    def found(cls, rank: int, world_size: int) -> ResumeRanks:
        """Return the rank of an initialised torch.distributed, or else the given one."""
        return cls(*(rank_and_world_size() or (rank, world_size)))

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def decide(self, work: Callable[[], str]) -> str:
        """Call ``work`` on rank 0 only, and return its result on all ranks.

        If ``work`` raises, all ranks raise: an error of this library of the same type with the same text, or else a
        ResumeError.
        """
        if self.world_size == 1:
            return work()
        if not self.leads:
            return _decode_message(self.share(None))
        self._check()  # before the work, which may write a claim in vain
        try:
            text = work()
        except Exception as error:
            with suppress(ResumeError):  # raise the first error
                self.share(json.dumps({"failure": encode_error(error)}))
            raise
        self.share(json.dumps({"text": text}))
        return text

    def share(self, text: str | None) -> str:
        """Return the text of rank 0 on all ranks. The others pass None."""
        if self.leads and text is None:
            raise ResumeError("rank 0 has nothing to share: it is the one whose text counts.")
        if self.world_size == 1:
            assert text is not None
            return text
        device = self._check()
        import torch
        import torch.distributed as distributed

        content = (text or "").encode()
        try:
            size = torch.tensor([len(content)], dtype=torch.int64, device=device)
            distributed.broadcast(size, src=0)
            if not (length := int(size.item())):
                return ""
            payload = _bytes(content, length, device)
            distributed.broadcast(payload, src=0)
            return bytes(payload.cpu().tolist()).decode()
        except RuntimeError as error:
            raise self._lost(error) from error

    def all_agree(self, ok: bool, why: str = "") -> None:
        """Return if ``ok`` is true on all ranks; else raise ResumeError on all, with the ranks where it is not."""
        if self.world_size == 1:
            if not ok:
                raise ResumeError(why or "this process could not continue.")
            return
        device = self._check()
        import torch
        import torch.distributed as distributed

        content = b"" if ok else (why or "no reason given").encode()[:_MAX_REASON_BYTES]
        try:
            sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self.world_size)]
            distributed.all_gather(sizes, torch.tensor([len(content)], dtype=torch.int64, device=device))
            lengths = [int(size.item()) for size in sizes]
            if not any(lengths):
                return
            longest = max(lengths)
            reasons = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(self.world_size)]
            distributed.all_gather(reasons, _bytes(content, longest, device))
        except RuntimeError as error:
            raise self._lost(error) from error
        failed = {
            rank: bytes(reason[:length].cpu().tolist()).decode(errors="replace")
            for rank, (reason, length) in enumerate(zip(reasons, lengths, strict=True))
            if length
        }
        raise ResumeError(_disagreement(failed, self.world_size))

    def _check(self) -> torch.device:
        """Check that collectives are possible, and return the device for their tensors."""
        place = rank_and_world_size()
        if place is None:
            raise ResumeError(
                f"rank {self.rank} of {self.world_size} cannot reach the others: call "
                f"torch.distributed.init_process_group() before Resume. If each process trains on its own, give each "
                f"its own root and world_size=1."
            )
        if place != (self.rank, self.world_size):
            raise ResumeError(
                f"this process is rank {self.rank} of {self.world_size} to Resume and rank {place[0]} of {place[1]} "
                f"to torch.distributed. Give Resume the rank and world_size of torch.distributed."
            )
        return _device()

    def _lost(self, error: RuntimeError) -> ResumeError:
        return ResumeError(
            f"rank {self.rank} of {self.world_size} lost the others while agreeing where to resume: "
            f"{str(error)[:300]}. Nothing was decided; start all of them again."
        )


def _device() -> torch.device:
    """Return the CPU if the group supports it, else the device of this process: NCCL needs device memory."""
    import torch
    import torch.distributed as distributed

    kinds = [part.partition(":")[0] for part in str(distributed.get_backend_config()).split(",")]
    if "cpu" in kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], torch.get_device_module(kinds[0]).current_device())


def _bytes(content: bytes, length: int, device: torch.device) -> torch.Tensor:
    import torch

    return torch.tensor(list(content.ljust(length, b"\0")), dtype=torch.uint8, device=device)


def _decode_message(content: str) -> str:
    message: dict[str, Any] = json.loads(content)
    failure = message.get("failure")
    if failure is None:
        return str(message["text"])
    error = decode_error(failure, default=ResumeError)
    if not failure["kind"]:
        error = ResumeError(f"rank 0 failed while it looked where to resume: {error}")
    raise error


def _disagreement(failed: dict[int, str], world_size: int) -> str:
    """Name all ranks that failed, and the reasons of a few of them."""
    ranks = ", ".join(str(rank) for rank in failed)
    reasons = "; ".join(f"rank {rank}: {reason}" for rank, reason in list(failed.items())[:4])
    more = f"; and {len(failed) - 4} more" if len(failed) > 4 else ""
    noun = "rank" if len(failed) == 1 else "ranks"
    return f"{noun} {ranks} of {world_size} could not continue, so none does. {reasons}{more}"
