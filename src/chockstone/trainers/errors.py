"""What can go wrong in a trainer.

TrainerError
├── ConfigInvalid      settings that contradict themselves
├── RewardInvalid      a reward that is not a finite number
├── ResumeRefused      there is something to go on from, and going on from it would be wrong
└── FinalSaveFailed    training is over, and its last state could not be kept
"""

from __future__ import annotations


class TrainerError(Exception):
    """A trainer cannot go on."""


class ConfigInvalid(TrainerError, ValueError):
    """Settings that contradict themselves. Nothing was started."""


class RewardInvalid(TrainerError):
    """A reward that is not a finite number: advantages, and with them the weights, would be ruined."""


class ResumeRefused(TrainerError):
    """Something was saved here, and it cannot be gone on from. Nothing was started, nothing was changed."""


class FinalSaveFailed(TrainerError):
    """Training ended and its last state is not kept; the message names the newest one that is."""
