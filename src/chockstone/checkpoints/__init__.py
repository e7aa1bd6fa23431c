"""The checkpoint library: one verified tar per checkpoint, saved without stopping the trainer.

Knows nothing of servers, runs or catalogs, and imports torch only to make or fill torch tensors.
"""

from chockstone.checkpoints.checkpointer import Checkpointer
from chockstone.checkpoints.format.shards import Pieces
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.reading.listing import StoredCheckpoint, list_checkpoints
from chockstone.checkpoints.reading.reader import verify_archive
from chockstone.checkpoints.restoring.random_state import RandomState
from chockstone.checkpoints.restoring.receipt import RestoreReceipt
from chockstone.checkpoints.restoring.restore import load_state, load_tensor, restore_state
from chockstone.checkpoints.resume.resume import Resume
from chockstone.checkpoints.retention.policy import Best, Retention
from chockstone.checkpoints.runtime.threads import tune_for_latency
from chockstone.checkpoints.runtime.watchdog import LoopBlocked, LoopWatchdog, Stall, Stalls
from chockstone.checkpoints.saving.admission import Admission
from chockstone.checkpoints.saving.handle import SavedCheckpoint, SaveHandle, SaveProgress
from chockstone.checkpoints.saving.request import SaveOptions
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
    "SaveProgress",
    "RandomState",
    "RestoreReceipt",
    "Resume",
    "Retention",
    "SaveHandle",
    "SaveOptions",
    "SavedCheckpoint",
    "Stall",
    "Stalls",
    "Store",
    "tune_for_latency",
    "load_state",
    "load_tensor",
    "open_store",
    "restore_state",
    "list_checkpoints",
    "verify_archive",
]
