"""Sharded archives: all ranks of a ModelParallelStrategy (FSDP2, tensor parallelism) save one archive together.

Lightning's own strategy writes a directory with a file per rank, past the CheckpointIO plugin. With this one each rank
copies and writes its shards into one file, and any number of ranks resumes from it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from chockstone.checkpoints import Admission
from chockstone.integrations.checkpointer_options import RANK_TIMEOUT_SECONDS
from chockstone.integrations.lightning.checkpoint_io import HPC, is_resumed, local_path
from chockstone.integrations.lightning.files import ArchiveFiles
from chockstone.integrations.lightning.packages import take

if TYPE_CHECKING:
    from lightning.pytorch.strategies import ModelParallelStrategy
else:
    ModelParallelStrategy = take("ModelParallelStrategy", module=".strategies")


class ShardedArchives:
    """A mixin in front of a ModelParallelStrategy: ``class Mine(ShardedArchives, ModelParallelStrategy): pass``."""

    model: torch.nn.Module | None  # these are the strategy's
    optimizers: list[torch.optim.Optimizer]

    def __init__(
        self,
        *args: Any,
        admission: Admission | None = None,
        buffers: int = 1,
        bytes_per_second: float | None = None,
        rank_timeout_seconds: float = RANK_TIMEOUT_SECONDS,
        **options: Any,
    ) -> None:
        """Takes what the strategy takes, and the options of ``Checkpointer`` that are named here."""
        super().__init__(*args, **options)
        self._files = ArchiveFiles(
            save_ranks="auto",
            admission=admission,
            buffers=buffers,
            bytes_per_second=bytes_per_second,
            rank_timeout_seconds=rank_timeout_seconds,
        )

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.model is not None
        return get_model_state_dict(self.model)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        assert self.model is not None
        return get_optimizer_state_dict(self.model, _plain(optimizer))

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | os.PathLike[str], storage_options: object = None
    ) -> None:
        """Copy this rank's shards; all ranks write them in the background. All ranks call it."""
        if storage_options is not None:
            raise TypeError(f"{type(self).__name__} takes no storage_options; give options to its constructor")
        path = local_path(self.broadcast(os.fspath(filepath)))  # type: ignore[attr-defined]  # the strategy's
        handle = self._files.save(checkpoint, path)
        if path.name.startswith(HPC):
            handle.result()  # the job may end right after this

    def wait_for_saves(self) -> None:
        """Return when all saves so far are durable. Raises SaveFailed if one failed."""
        self._files.wait()
        self._files.raise_failed()

    def load_checkpoint(
        self, checkpoint_path: str | os.PathLike[str], weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Each rank reads its shards into model and optimizers. Walks back as ``ArchiveCheckpointIO`` does."""
        del weights_only  # archives hold nothing else
        path = local_path(self.broadcast(os.fspath(checkpoint_path)))  # type: ignore[attr-defined]  # the strategy's
        loaded = dict(self._files.restore(path, self._target, walk_back=is_resumed(path)))
        assert self.model is not None
        set_model_state_dict(self.model, loaded["state_dict"])
        for optimizer, state in zip(self.optimizers, loaded.get("optimizer_states", ()), strict=True):
            set_optimizer_state_dict(self.model, _plain(optimizer), state)
        return loaded

    def remove_checkpoint(self, filepath: str | os.PathLike[str]) -> None:
        if self.is_global_zero:  # type: ignore[attr-defined]  # the strategy's
            self._files.delete(local_path(filepath))

    def teardown(self) -> None:
        self._files.close()
        super().teardown()  # type: ignore[misc]  # the strategy's

    def _target(self) -> dict[str, Any]:
        assert self.model is not None
        states = [get_optimizer_state_dict(self.model, _plain(optimizer)) for optimizer in self.optimizers]
        target = _OpenDict(state_dict=get_model_state_dict(self.model))
        return _OpenDict(target, optimizer_states=states) if states else target


class ArchiveModelParallelStrategy(ShardedArchives, ModelParallelStrategy):
    """ModelParallelStrategy that saves one archive from all ranks, in the background."""


class _OpenDict(dict[str, Any]):
    """A target of a restore that also takes keys which it does not have: loops, callbacks, schedulers."""

    def __contains__(self, key: object) -> bool:
        return True


def _plain(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer inside of a LightningOptimizer."""
    plain: torch.optim.Optimizer = getattr(optimizer, "_optimizer", optimizer)
    return plain
