"""Jobs of ranks that train a small FSDP2 model with torchtitan's optimizers, schedulers and data loader."""

from __future__ import annotations

import json
import os
import shutil
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import IterableDataset

STEPS = 8


class Numbers(IterableDataset[torch.Tensor]):
    """Draws that depend on how many were taken before, and on the rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.taken = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self.taken += 1
            yield torch.randn(8, generator=torch.Generator().manual_seed(1000 * self.taken + self.rank))

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.taken = state["taken"]


class Training:
    """What torchtitan's trainer is to its checkpoint manager."""

    def __init__(self, rank: int, place: Path, *, own_manager: bool = False, **settings: Any) -> None:
        warnings.simplefilter("ignore")  # of torchtitan and torchdata
        from torchtitan.components.checkpointer import CheckpointManager
        from torchtitan.components.dataloader import ParallelAwareDataloader
        from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

        from chockstone.integrations.torchtitan import ArchiveCheckpointManager

        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        for layer in (self.model[0], self.model[2], self.model):
            fully_shard(layer)
        self.optimizers = default_adamw(lr=1e-2).build(model_parts=[self.model])
        self.schedulers = LRSchedulersContainer.Config(warmup_steps=3).build(
            optimizers=self.optimizers, training_steps=20
        )
        self.loader = ParallelAwareDataloader(Numbers(rank), rank, 2, batch_size=2)
        self.step = 0
        manager = CheckpointManager if own_manager else ArchiveCheckpointManager
        config = manager.Config(
            enable=True, interval=2, last_save_model_only=settings.pop("last_save_model_only", False), **settings
        )
        self.manager = config.build(
            dataloader=self.loader,
            model_parts=[self.model],
            optimizers=self.optimizers,
            lr_schedulers=self.schedulers,
            states={"train_state": self},
            sd_adapter=None,
            base_folder=str(place),
        )

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]

    def steps(self, last: int) -> Iterator[tuple[int, str]]:
        """Train to that step; the loss of each, in full."""
        batches = iter(self.loader)
        while self.step < last:
            self.step += 1
            loss = self.model(next(batches)).pow(2).mean()
            loss.backward()
            self.manager.maybe_wait_for_staging()
            self.optimizers.step()
            self.schedulers.step()
            self.optimizers.zero_grad()
            yield self.step, loss.item().hex()
            self.manager.save(self.step, last_step=self.step == STEPS)


def train(rank: int, place: Path, kill_at: int) -> dict[str, Any]:
    """Train to the end, or until rank 1 is killed. Each rank writes down its losses."""
    training = Training(rank, place, keep_latest_k=3)
    training.manager.load()
    started = training.step
    for step, loss in training.steps(STEPS):
        with (place / f"rank-{rank}.jsonl").open("a") as losses:
            print(json.dumps([started, step, loss]), file=losses, flush=True)
        if step == kill_at:
            training.manager.maybe_wait_for_saving()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    training.manager.close()
    return {"started": started, "rate": training.schedulers.get_metrics()}


def try_policies(rank: int, place: Path) -> dict[str, Any]:
    """Load and save in the other ways that torchtitan's settings offer; what came of each."""
    import torch.distributed as distributed

    found: dict[str, Any] = {}
    native = Training(rank, place, folder="native", own_manager=True, async_mode="disabled")
    list(native.steps(2))
    native.manager.close()
    moved = Training(rank, place, folder="native")
    found["loads the format of torchtitan"] = moved.manager.load(), moved.step
    list(moved.steps(4))
    moved.manager.close()
    again = Training(rank, place, folder="native")
    found["prefers the newer step"] = again.manager.load(), again.step, again.manager.receipt.step
    again.manager.close()

    start = {"initial_load_path": str(place / "native" / "step-4"), "initial_load_model_only": True}
    other = Training(rank, place, folder="other", last_save_model_only=True, export_dtype="bfloat16", **start)
    found["starts from another folder"] = other.manager.load(), other.step, _same(other.model, again.model)
    other.step = STEPS - 1
    list(other.steps(STEPS))  # a last step of the model only
    other.manager.close()
    try:
        Training(rank, place, folder="other").manager.load()
    except Exception as error:
        found["refuses to continue from weights alone"] = type(error).__name__, str(error)

    distributed.barrier()
    if rank == 0:
        shutil.copy(place / "native" / "step-4" / "checkpoint.tar", place / "good.tar")
        for step in ("step-2", "step-4"):
            shutil.rmtree(place / "native" / step)
            (place / "native" / step).mkdir()
            (place / "native" / step / "checkpoint.tar").write_bytes((place / "good.tar").read_bytes()[:-4096])
    distributed.barrier()
    for name, step in (("raises for a damaged step", 4), ("never starts at zero silently", -1)):
        try:
            Training(rank, place, folder="native").manager.load(step)
        except Exception as error:
            found[name] = type(error).__name__, str(error)
    off = Training(rank, place, folder="off")
    off.manager.enable = False
    found["does nothing when it is disabled"] = off.manager.load(), off.manager.save(2), (place / "off").exists()
    return found


def _same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(mine.to_local(), theirs.to_local()) for mine, theirs in pairs)
