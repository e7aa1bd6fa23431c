"""Ranks: several processes of one training, one decision, and either all go on or none does.

Rank 0 looks, claims and saves; the others hear from it what to restore. What it says goes through torch.distributed as
bytes, never as objects: those would be unpickled. Imports torch only where there is more than one process.
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
    """This process among ``world_size``. All of them call the same methods in the same order, as with any collective.

    One process alone needs no torch and waits for nobody: ``decide`` is then a call, ``share`` gives back what it got,
    ``all_agree`` raises for itself.
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ResumeError(f"rank {self.rank!r} is not one of a world of {self.world_size!r}, which counts from 0.")

    @classmethod
    def found(cls, rank: int, world_size: int) -> ResumeRanks:
        """What an initialised torch.distributed says; else what is given, as by the environment."""
        return cls(*(rank_and_world_size() or (rank, world_size)))

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def decide(self, work: Callable[[], str]) -> str:
        """What ``work`` gives on rank 0, the only one that does it, on all of them.

        If it fails there, it raises on all: the same kind of error with the same text, as far as it is one of this
        library's, else a ResumeError.
        """
        if self.world_size == 1:
            return work()
        if not self.leads:
            return _heard(self.share(None))
        self._check()  # before the work, which may write a claim that nobody then goes by
        try:
            text = work()
        except Exception as error:
            with suppress(ResumeError):  # what went wrong first is what is raised
                self.share(json.dumps({"failure": encode_error(error)}))
            raise
        self.share(json.dumps({"text": text}))
        return text

    def share(self, text: str | None) -> str:
        """The text of rank 0, on all of them. The others give None."""
        if self.leads and text is None:
            raise ResumeError("rank 0 has nothing to share: it is the one whose text counts.")
        if self.world_size == 1:
            assert text is not None
            return text
        device = self._check()
        import torch
        import torch.distributed as distributed

        said = (text or "").encode()
        try:
            size = torch.tensor([len(said)], dtype=torch.int64, device=device)
            distributed.broadcast(size, src=0)
            if not (length := int(size.item())):
                return ""
            payload = _bytes(said, length, device)
            distributed.broadcast(payload, src=0)
            return bytes(payload.cpu().tolist()).decode()
        except RuntimeError as error:
            raise self._lost(error) from error

    def all_agree(self, ok: bool, why: str = "") -> None:
        """Return on all of them if ``ok`` is true on all of them; else raise ResumeError on all, naming who was not."""
        if self.world_size == 1:
            if not ok:
                raise ResumeError(why or "this process could not go on.")
            return
        device = self._check()
        import torch
        import torch.distributed as distributed

        said = b"" if ok else (why or "no reason given").encode()[:_MAX_REASON_BYTES]
        try:
            sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self.world_size)]
            distributed.all_gather(sizes, torch.tensor([len(said)], dtype=torch.int64, device=device))
            lengths = [int(size.item()) for size in sizes]
            if not any(lengths):
                return
            longest = max(lengths)
            reasons = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(self.world_size)]
            distributed.all_gather(reasons, _bytes(said, longest, device))
        except RuntimeError as error:
            raise self._lost(error) from error
        failed = {
            rank: bytes(reason[:length].cpu().tolist()).decode(errors="replace")
            for rank, (reason, length) in enumerate(zip(reasons, lengths, strict=True))
            if length
        }
        raise ResumeError(_disagreement(failed, self.world_size))

    def _check(self) -> torch.device:
        """Where the tensors of a collective must lie, once it is known that one can be had."""
        place = rank_and_world_size()
        if place is None:
            raise ResumeError(
                f"rank {self.rank} of {self.world_size} cannot hear from the others: call "
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
    """The processor if the group can use it, else the device of the process: NCCL knows no other memory."""
    import torch
    import torch.distributed as distributed

    kinds = [part.partition(":")[0] for part in str(distributed.get_backend_config()).split(",")]
    if "cpu" in kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], torch.get_device_module(kinds[0]).current_device())


def _bytes(said: bytes, length: int, device: torch.device) -> torch.Tensor:
    import torch

    return torch.tensor(list(said.ljust(length, b"\0")), dtype=torch.uint8, device=device)


def _heard(said: str) -> str:
    message: dict[str, Any] = json.loads(said)
    failure = message.get("failure")
    if failure is None:
        return str(message["text"])
    error = decode_error(failure, default=ResumeError)
    if not failure["kind"]:
        error = ResumeError(f"rank 0 failed while it looked where to resume: {error}")
    raise error


def _disagreement(failed: dict[int, str], world_size: int) -> str:
    """All ranks by number, and the reasons of a few: thousands would fail of the same."""
    ranks = ", ".join(str(rank) for rank in failed)
    reasons = "; ".join(f"rank {rank}: {reason}" for rank, reason in list(failed.items())[:4])
    more = f"; and {len(failed) - 4} more" if len(failed) > 4 else ""
    noun = "rank" if len(failed) == 1 else "ranks"
    return f"{noun} {ranks} of {world_size} could not go on, so none does. {reasons}{more}"
