"""torch.distributed.checkpoint: ``dcp.save``, ``dcp.async_save`` and ``dcp.load`` on verified archives.

    dcp.save(state, storage_writer=ArchiveWriter("./checkpoints", prefix="run-1", step=100))
    dcp.load(state, storage_reader=ArchiveReader("./checkpoints", prefix="run-1"))

All ranks write one archive, and any number of ranks reads it. DCP's planners decide which rank has what; values that
are no tensors are stored as plain data and never as pickles. Imports torch; knows nothing of other platforms.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chockstone.integrations.dcp.directory import list_dcp_directory, read_dcp_directory
    from chockstone.integrations.dcp.reader import ArchiveReader
    from chockstone.integrations.dcp.session import release_buffers
    from chockstone.integrations.dcp.writer import ArchiveWriter

__all__ = ["ArchiveReader", "ArchiveWriter", "list_dcp_directory", "read_dcp_directory", "release_buffers"]

_HOMES = {
    "ArchiveReader": "reader",
    "ArchiveWriter": "writer",
    "list_dcp_directory": "directory",
    "read_dcp_directory": "directory",
    "release_buffers": "session",
}


def __getattr__(name: str) -> Any:  # Any: a class or a function
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from chockstone.extras import require

    require("torch", __name__)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
