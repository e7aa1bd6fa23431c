"""Hugging Face Trainer: checkpoints as archives, saved in the background, for any subclass such as TRL's trainers.

    checkpoints = attach(trainer, "./checkpoints")
    trainer.train(resume_from_checkpoint="auto")

Imports torch and transformers only when one of the names is used. Knows the Trainer and the checkpoint library.
"""

from typing import TYPE_CHECKING

from chockstone.lazy_names import lazy_names

if TYPE_CHECKING:
    from chockstone.integrations.hf_trainer.directory import export_hf_directory
    from chockstone.integrations.hf_trainer.trainer import ArchiveTrainer, TrainerUnsupported, attach
    from chockstone.integrations.hf_trainer.trainer_checkpoints import TrainerCheckpoints

__all__ = ["ArchiveTrainer", "TrainerCheckpoints", "TrainerUnsupported", "attach", "export_hf_directory"]

__getattr__ = lazy_names(
    __name__,
    {
        "ArchiveTrainer": "trainer",
        "TrainerCheckpoints": "trainer_checkpoints",
        "TrainerUnsupported": "trainer",
        "attach": "trainer",
        "export_hf_directory": "directory",
    },
    needs="hf-trainer",
)
