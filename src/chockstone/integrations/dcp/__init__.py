"""torch.distributed.checkpoint: ``dcp.save``, ``dcp.async_save`` and ``dcp.load`` on verified archives.

    dcp.save(state, storage_writer=ArchiveWriter("./checkpoints", prefix="run-1", step=100))
    dcp.load(state, storage_reader=ArchiveReader("./checkpoints", prefix="run-1"))

All ranks write one archive, and any number of ranks reads it. DCP's planners decide which rank has what; values that
are no tensors are stored as plain data and never as pickles. Imports torch; knows nothing of other platforms.
"""

from typing import TYPE_CHECKING

from chockstone.lazy_names import lazy_names

if TYPE_CHECKING:
    from chockstone.integrations.dcp.reader import ArchiveReader
    from chockstone.integrations.dcp.session import release_buffers
    from chockstone.integrations.dcp.writer import ArchiveWriter

__all__ = ["ArchiveReader", "ArchiveWriter", "release_buffers"]

__getattr__ = lazy_names(
    __name__,
    {
        "ArchiveReader": "reader",
        "ArchiveWriter": "writer",
        "release_buffers": "session",
    },
    needs="torch",
)
