"""The checkpoint library: one verified tar per checkpoint, saved without stopping the trainer.

Knows nothing of servers, runs or catalogs, and imports torch only to make or fill torch tensors.
"""

from chockstone.checkpoints.admission import Admission
from chockstone.checkpoints.archive import Archive
from chockstone.checkpoints.checkpointer import Checkpointer, SaveOptions
from chockstone.checkpoints.handle import Progress, Saved, SaveHandle
from chockstone.checkpoints.random_state import RandomState
from chockstone.checkpoints.reader import verify_archive
from chockstone.checkpoints.receipt import Receipt
from chockstone.checkpoints.restore import load_state, load_tensor, restore_state
from chockstone.checkpoints.resume.resume import Resume
from chockstone.checkpoints.retention import Best, Retention
from chockstone.checkpoints.sharded.pieces import Pieces
from chockstone.checkpoints.store import Store, open_store
from chockstone.checkpoints.survey import Checkpoint, survey
from chockstone.checkpoints.threads import answer_promptly
from chockstone.checkpoints.watchdog import LoopBlocked, LoopWatchdog, Stall, Stalls

__all__ = [
    "Admission",
    "Archive",
    "Best",
    "Checkpoint",
    "Checkpointer",
    "LoopBlocked",
    "LoopWatchdog",
    "Pieces",
    "Progress",
    "RandomState",
    "Receipt",
    "Resume",
    "Retention",
    "SaveHandle",
    "SaveOptions",
    "Saved",
    "Stall",
    "Stalls",
    "Store",
    "answer_promptly",
    "load_state",
    "load_tensor",
    "open_store",
    "restore_state",
    "survey",
    "verify_archive",
]
