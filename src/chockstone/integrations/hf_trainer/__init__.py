"""Hugging Face Trainer: checkpoints as archives, saved in the background, for any subclass such as TRL's trainers.

    checkpoints = attach(trainer, "./checkpoints")
    trainer.train(resume_from_checkpoint="auto")

Imports torch and transformers only when one of the names is used. Knows the Trainer and the checkpoint library.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chockstone.integrations.hf_trainer.directory import export_hf_directory
    from chockstone.integrations.hf_trainer.trainer import ArchiveTrainer, TrainerUnsupported, attach
    from chockstone.integrations.hf_trainer.trainer_checkpoints import TrainerCheckpoints

__all__ = ["ArchiveTrainer", "TrainerCheckpoints", "TrainerUnsupported", "attach", "export_hf_directory"]

_HOMES = {
    "ArchiveTrainer": "trainer",
    "TrainerCheckpoints": "trainer_checkpoints",
    "TrainerUnsupported": "trainer",
    "attach": "trainer",
    "export_hf_directory": "directory",
}


def __getattr__(name: str) -> Any:  # Any: a class or a function
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from chockstone.extras import require

    require("hf-trainer", __name__)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
