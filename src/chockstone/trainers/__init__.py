"""Asynchronous reinforcement learning through a Tinker server: generates while it trains and while it saves.

``rollouts`` makes the data to train on, ``reports`` writes metrics. Uses the ``tinker`` SDK and the checkpoint
library; must not import the server or torch. Only ``Trainer`` and ``TrainingOutcome`` import the SDK, on first use, so
that loops without the SDK can use the other names.
"""

from typing import TYPE_CHECKING, Any

from chockstone.trainers.collector import Collector, Measure
from chockstone.trainers.config import TrainerConfig
from chockstone.trainers.errors import ConfigInvalid, FinalSaveFailed, ResumeRefused, RewardInvalid, TrainerError
from chockstone.trainers.reports.reports import Report, Reports, StepRecord
from chockstone.trainers.rollouts.environment import Completion, Environment, Problem, load_environment
from chockstone.trainers.rollouts.loader import Loader, ProblemDraw, ShuffledLoader

if TYPE_CHECKING:
    from chockstone.trainers.trainer import Trainer, TrainingOutcome

__all__ = [
    "Collector",
    "Completion",
    "ConfigInvalid",
    "Environment",
    "FinalSaveFailed",
    "Loader",
    "Measure",
    "Problem",
    "ProblemDraw",
    "Report",
    "Reports",
    "ResumeRefused",
    "RewardInvalid",
    "ShuffledLoader",
    "StepRecord",
    "Trainer",
    "TrainerConfig",
    "TrainerError",
    "TrainingOutcome",
    "load_environment",
]


def __getattr__(name: str) -> Any:  # Any: a class
    if name not in ("TrainingOutcome", "Trainer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from chockstone.extras import require

    require("sdk", f"{__name__}.{name}")
    from chockstone.trainers import trainer

    return getattr(trainer, name)
