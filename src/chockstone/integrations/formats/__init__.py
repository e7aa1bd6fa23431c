"""Checkpoints of other programs: read into an archive (import), and written from one (export).

``reading`` maps what other programs wrote and never runs code of a file; ``writing`` writes what they read. The rooms
of the adapters (``dcp``, ``hf_trainer``) save and restore from inside a program; this one converts what lies on disk.
It must not know the command line.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chockstone.integrations.formats.importing import ImportedCheckpoint, import_checkpoint
    from chockstone.integrations.formats.reading.foreign_checkpoint import ForeignCheckpoint
    from chockstone.integrations.formats.reading.recognition import read_foreign

__all__ = ["ForeignCheckpoint", "ImportedCheckpoint", "import_checkpoint", "read_foreign"]

_HOMES = {
    "ForeignCheckpoint": "reading.foreign_checkpoint",
    "ImportedCheckpoint": "importing",
    "import_checkpoint": "importing",
    "read_foreign": "reading.recognition",
}


def __getattr__(name: str) -> Any:  # Any: a class or a function
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
