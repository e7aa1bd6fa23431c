"""Errors of a trainer.

TrainerError
├── ConfigInvalid         contradictory settings
├── RewardInvalid         a reward that is not a finite number
├── ResumeRefused         a saved state exists, and resuming from it would be wrong
├── FinalSaveFailed       training ended, and its last state could not be saved
└── ConversationsRefused  a server did not give, or did not change, stored conversations
"""

from __future__ import annotations


class TrainerError(Exception):
    """A trainer cannot continue."""


class ConfigInvalid(TrainerError, ValueError):
    """Contradictory settings. Nothing was started."""


class RewardInvalid(TrainerError):
    """A reward that is not a finite number: it would make the advantages and the weights NaN."""


class ResumeRefused(TrainerError):
    """The directory holds a saved state that this run cannot resume from. Nothing was started or changed."""


class FinalSaveFailed(TrainerError):
    """Training ended and its last state is not saved. The message names the newest checkpoint."""


class ConversationsRefused(TrainerError):
    """The server did not do what was asked of stored conversations. The message says why."""
