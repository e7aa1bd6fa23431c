"""The checkpoint library: one verified tar per checkpoint, saved without stopping the trainer.

Knows nothing of servers, runs or catalogs, and imports torch only to make or fill torch tensors. Each part imports only
those before it: errors, runtime, format, stores, reading, retention, saving, restoring, ranks, checkpointer, resume.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "Admission": "saving",
    "Archive": "reading",
    "Best": "retention",
    "Checkpointer": "checkpointer",
    "LoopBlocked": "runtime",
    "LoopWatchdog": "runtime",
    "Pieces": "format",
    "RandomState": "restoring",
    "RestoreReceipt": "restoring",
    "Resume": "resume.resume",
    "Retention": "retention",
    "SaveHandle": "saving",
    "SaveOptions": "saving",
    "SaveProgress": "saving",
    "SavedCheckpoint": "saving",
    "Stall": "runtime",
    "Stalls": "runtime",
    "Store": "stores",
    "StoredCheckpoint": "reading",
    "list_checkpoints": "reading",
    "load_state": "restoring",
    "load_tensor": "restoring",
    "open_store": "stores",
    "restore_state": "restoring",
    "tune_for_latency": "runtime",
    "verify_archive": "reading",
}


def __getattr__(name: str) -> Any:  # Any: a class or a function
    """Import a name on first use, so that ``chockstone.checkpoints.errors`` costs the command line no numpy."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
