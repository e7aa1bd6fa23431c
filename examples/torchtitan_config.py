"""A configuration for torchtitan 0.3 whose checkpoints are archives: written in the background, verified when loaded.

Run it in torchtitan's repository, on GPUs, with the path of this directory:

PYTHONPATH=…/examples torchrun --nproc-per-node 2 -m torchtitan.train --module torchtitan_config --config small_llama3

Kill it and run it again: it resumes from the newest step that is not damaged. Flags such as `--checkpoint.interval 100`
work as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtitan.models.llama3.config_registry import llama3_debugmodel

from chockstone.integrations.torchtitan import ArchiveCheckpointManager

if TYPE_CHECKING:
    from torchtitan.trainer import Trainer


def small_llama3() -> Trainer.Config:
    """torchtitan's debug model, with a checkpoint every ten steps."""
    config = llama3_debugmodel()
    config.training.steps = 100
    config.checkpoint = ArchiveCheckpointManager.Config(enable=True, interval=10, keep_latest_k=3)
    return config
