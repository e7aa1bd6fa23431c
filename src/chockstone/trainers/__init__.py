"""Trainers: reinforcement learning through a Tinker server, generating while it trains and while it saves.

Knows the ``tinker`` SDK and the checkpoint library; nothing of the server, and no torch. The SDK is imported with
``Trainer``: the other names serve loops that have none, too.
"""

from typing import TYPE_CHECKING, Any

from chockstone.trainers.config import TrainerConfig
from chockstone.trainers.errors import ConfigInvalid, FinalSaveFailed, ResumeRefused, RewardInvalid, TrainerError
from chockstone.trainers.reports.collector import Collector, Measure
from chockstone.trainers.reports.reports import Report, Reports, StepRecord
from chockstone.trainers.rollouts.environment import Completion, Environment, Problem, load_environment
from chockstone.trainers.rollouts.loader import Draw, Loader, ShuffledLoader

if TYPE_CHECKING:
    from chockstone.trainers.trainer import Trainer, TrainingOutcome

__all__ = [
    "Collector",
    "Completion",
    "ConfigInvalid",
    "Draw",
    "Environment",
    "FinalSaveFailed",
    "Loader",
    "Measure",
    "TrainingOutcome",
    "Problem",
    "Report",
    "Reports",
    "ResumeRefused",
    "RewardInvalid",
    "ShuffledLoader",
    "StepRecord",
    "Trainer",
    "TrainerConfig",
    "TrainerError",
    "load_environment",
]


def __getattr__(name: str) -> Any:  # Any: a class
    if name not in ("TrainingOutcome", "Trainer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from chockstone.trainers import trainer

    return getattr(trainer, name)
