"""One archive of several ranks: each process of a training writes and reads its own bytes of the one file.

Loads torch.distributed only where a program has initialised it. Knows saving and restoring, and nothing of training.
"""

from chockstone.checkpoints.ranks.coordinator import RankCoordinator

__all__ = ["RankCoordinator"]
