"""The checkpoint library: one verified tar per checkpoint, saved without stopping the trainer.

Knows nothing of servers, runs or catalogs, and imports torch only to make or fill torch tensors.
"""

from chockstone.checkpoints.checkpointer import Checkpointer, SaveOptions
from chockstone.checkpoints.format.holdings import Pieces
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.reading.reader import verify_archive
from chockstone.checkpoints.reading.survey import StoredCheckpoint, survey
from chockstone.checkpoints.restoring.random_state import RandomState
from chockstone.checkpoints.restoring.receipt import Receipt
from chockstone.checkpoints.restoring.restore import load_state, load_tensor, restore_state
from chockstone.checkpoints.resume.resume import Resume
from chockstone.checkpoints.retention.policy import Best, Retention
from chockstone.checkpoints.runtime.threads import answer_promptly
from chockstone.checkpoints.runtime.watchdog import LoopBlocked, LoopWatchdog, Stall, Stalls
from chockstone.checkpoints.saving.admission import Admission
from chockstone.checkpoints.saving.handle import Progress, Saved, SaveHandle
from chockstone.checkpoints.stores.store import Store, open_store

__all__ = [
    "Admission",
    "Archive",
    "Best",
    "StoredCheckpoint",
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
