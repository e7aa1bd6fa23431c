"""The checkpoint library: one verified tar per checkpoint, saved without stopping the trainer.

Knows nothing of servers, runs or catalogs, and imports torch only to make or fill torch tensors. Each part imports only
those before it: errors, runtime, format, stores, reading, retention, saving, restoring, ranks, checkpointer, resume.
"""

from chockstone.checkpoints.checkpointer import Checkpointer
from chockstone.checkpoints.format import Pieces
from chockstone.checkpoints.reading import Archive, StoredCheckpoint, list_checkpoints, verify_archive
from chockstone.checkpoints.restoring import RandomState, RestoreReceipt, load_state, load_tensor, restore_state
from chockstone.checkpoints.resume.resume import Resume
from chockstone.checkpoints.retention import Best, Retention
from chockstone.checkpoints.runtime import LoopBlocked, LoopWatchdog, Stall, Stalls, tune_for_latency
from chockstone.checkpoints.saving import Admission, SavedCheckpoint, SaveHandle, SaveOptions, SaveProgress
from chockstone.checkpoints.stores import Store, open_store

__all__ = [
    "Admission",
    "Archive",
    "Best",
    "Checkpointer",
    "LoopBlocked",
    "LoopWatchdog",
    "Pieces",
    "RandomState",
    "RestoreReceipt",
    "Resume",
    "Retention",
    "SaveHandle",
    "SaveOptions",
    "SaveProgress",
    "SavedCheckpoint",
    "Stall",
    "Stalls",
    "Store",
    "StoredCheckpoint",
    "list_checkpoints",
    "load_state",
    "load_tensor",
    "open_store",
    "restore_state",
    "tune_for_latency",
    "verify_archive",
]
