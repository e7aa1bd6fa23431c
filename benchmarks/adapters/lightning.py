"""Lightning: ``Trainer.save_checkpoint``, as ModelCheckpoint calls it, and what a Trainer does to resume."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.adapters.host import Finish, Host, Way, Ways
from benchmarks.adapters.training import Training


@contextmanager
def open_ways(training: Training, directory: Path) -> Iterator[Ways]:
    from lightning.pytorch import LightningModule, Trainer

    from chockstone.integrations.lightning import ArchiveCheckpointIO

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)  # of torch, about names that Lightning uses

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = training.model

    def trainer(*plugins: Any) -> Any:
        made = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, plugins=list(plugins))
        made.strategy.connect(Module())
        made.strategy.optimizers = [training.optimizer]
        return made

    io = ArchiveCheckpointIO()
    own, ours = trainer(), trainer(io)
    numbers = count(1)

    def start(saving: Any, folder: str) -> Finish:
        path = directory / folder / f"step={next(numbers)}.ckpt"
        saving.save_checkpoint(path, weights_only=False)

        def finish() -> Path:
            io.wait_for_saves()
            return path

        return finish

    def restore(restoring: Any, path: Path) -> None:
        checkpoint = restoring.strategy.load_checkpoint(path)
        restoring.strategy.load_model_state_dict(checkpoint)
        restoring.strategy.load_optimizer_state_dict(checkpoint)

    try:
        yield Ways(
            own=Way(lambda: start(own, "own"), lambda path: restore(own, path)),
            ours=Way(lambda: start(ours, "archives"), lambda path: restore(ours, path)),
        )
    finally:
        io.teardown()


HOST = Host("lightning", "Trainer.save_checkpoint", "ArchiveCheckpointIO", package="lightning", open=open_ways)
