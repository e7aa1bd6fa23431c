"""The Trainer of Hugging Face: the save that it makes at ``save_steps``, and what it does to resume."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.adapters.host import Finish, Host, Way, Ways
from benchmarks.adapters.training import Training


@contextmanager
def open_ways(training: Training, directory: Path) -> Iterator[Ways]:
    import transformers
    from torch.optim.lr_scheduler import ConstantLR

    from chockstone.integrations.hf_trainer import attach

    transformers.logging.set_verbosity_error()
    steps = count(1)
    scheduler = ConstantLR(training.optimizer)

    def trainer(name: str) -> Any:
        arguments = transformers.TrainingArguments(str(directory / name), report_to="none", use_cpu=True)
        return transformers.Trainer(training.model, arguments, optimizers=(training.optimizer, scheduler))

    def save(saving: Any) -> int:
        saving.state.global_step = next(steps)
        saving._save_checkpoint(training.model, None)  # what the Trainer calls after a step
        return int(saving.state.global_step)

    def load(restoring: Any, path: str) -> None:  # what the Trainer calls before the first step
        restoring._load_from_checkpoint(path)
        restoring._load_optimizer_and_scheduler(path)

    own, ours = trainer("own"), trainer("ours")
    checkpoints = attach(ours, directory / "archives")

    def start_own() -> Finish:
        path = directory / "own" / f"checkpoint-{save(own)}"
        return lambda: path

    def start_ours() -> Finish:
        save(ours)
        handle = checkpoints.last_save
        assert handle is not None
        return lambda: directory / "archives" / f"{handle.result().name}.tar"

    def restore_ours(path: Path) -> None:
        with checkpoints.training(ours, str(path)) as source:
            load(ours, str(source))

    try:
        yield Ways(own=Way(start_own, lambda path: load(own, str(path))), ours=Way(start_ours, restore_ours))
    finally:
        checkpoints.close()


HOST = Host("hf-trainer", "Trainer", "attach", package="transformers", open=open_ways)
