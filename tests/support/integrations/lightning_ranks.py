"""Lightning on two ranks of torchrun: trains with DDP and with FSDP2, stops, resumes, and compares the losses."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import distributed
from torch.distributed.fsdp import fully_shard

from chockstone.integrations.lightning import (
    ArchiveCheckpointIO,
    ArchiveModelParallelStrategy,
    RandomStates,
    newest_checkpoint,
)
from support.integrations.lightning_runs import PositionedBatches, RecordingModule, make_trainer


class ShardedModule(RecordingModule):
    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]  # type: ignore[index]  # the strategy has made it
        fully_shard(self.layers, mesh=mesh)


class RankBatches(PositionedBatches):
    """Each rank has batches of its own, from a generator that the ranks advance differently."""

    def _batches(self) -> Iterator[torch.Tensor]:
        for batch in super()._batches():
            torch.rand(1 + distributed.get_rank())
            yield batch


def train(root: Path, steps: int, model: RecordingModule, options: Callable[[], dict[str, Any]]) -> dict[int, float]:
    trainer = make_trainer(
        root,
        checkpoint=ModelCheckpoint(root, every_n_train_steps=2, save_top_k=1, save_last=True),
        callbacks=[RandomStates()],
        devices=2,
        max_steps=steps,
        **options(),
    )
    trainer.fit(model, RankBatches(), ckpt_path=newest_checkpoint(root))
    return model.losses


def compare(root: Path, kind: type[RecordingModule], options: Callable[[], dict[str, Any]]) -> None:
    seed_everything(3, verbose=False)
    alone = train(root / "alone", 6, kind(), options)
    seed_everything(3, verbose=False)
    train(root / "run", 4, kind(), options)
    seed_everything(4, verbose=False)
    resumed = train(root / "run", 6, kind(), options)
    assert resumed == {step: loss for step, loss in alone.items() if step > 4}, (alone, resumed)


def main(root: Path) -> None:
    warnings.simplefilter("ignore")
    compare(root / "ddp", RecordingModule, lambda: {"strategy": "ddp", "plugins": [ArchiveCheckpointIO()]})
    compare(root / "fsdp", ShardedModule, lambda: {"strategy": ArchiveModelParallelStrategy(2, 1)})
    print("the losses are the same", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
