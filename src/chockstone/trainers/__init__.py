"""Asynchronous reinforcement learning through a Tinker server: generates while it trains and while it saves.

``rollouts`` makes the data to train on, ``reports`` writes metrics. Uses the ``tinker`` SDK and the checkpoint
library; must not import the server or torch. ``Trainer``, ``TrainingOutcome`` and the names for stored conversations
import the SDK, on first use, so that loops without the SDK can use the other names.
"""

from typing import TYPE_CHECKING, Any

from chockstone.trainers.collector import Collector, Measure
from chockstone.trainers.config import TrainerConfig
from chockstone.trainers.errors import (
    ConfigInvalid,
    ConversationsRefused,
    FinalSaveFailed,
    ResumeRefused,
    RewardInvalid,
    TrainerError,
)
from chockstone.trainers.reports.reports import Report, Reports, StepRecord
from chockstone.trainers.rollouts.environment import Completion, Environment, Problem, load_environment
from chockstone.trainers.rollouts.loader import Loader, ProblemDraw, ShuffledLoader

if TYPE_CHECKING:
    from chockstone.trainers.rollouts.conversations import ConversationsClient, ExportedDatum, read_datums
    from chockstone.trainers.trainer import Trainer, TrainingOutcome

__all__ = [
    "Collector",
    "Completion",
    "ConfigInvalid",
    "ConversationsClient",
    "ConversationsRefused",
    "Environment",
    "ExportedDatum",
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
    "read_datums",
]
_OF_CONVERSATIONS = ("ConversationsClient", "ExportedDatum", "read_datums")


def __getattr__(name: str) -> Any:  # Any: a class
    if name not in ("TrainingOutcome", "Trainer", *_OF_CONVERSATIONS):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from chockstone.extras import require

    require("sdk", f"{__name__}.{name}")
    if name in _OF_CONVERSATIONS:
        from chockstone.trainers.rollouts import conversations

        return getattr(conversations, name)
    from chockstone.trainers import trainer

    return getattr(trainer, name)
