"""The keys record: a data directory remembers that its server requires API keys.

Keys may live in the catalog alone. Without the record, a server that lost its catalog would take itself for a new
one, on which every key is the local user's. The record is written when the first key is seen and is removed only by
an operator. Light to import: commands read it before they load a database.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chockstone.engine.ownership.data_directory import KEYS_RECORD

_CONTENT: Final = (
    b"The server on this data directory has API keys, and does not start without them.\n"
    b"Remove this file only to let everyone who reaches the server in, as the user `local` and as an administrator.\n"
)


class KeysRecord:
    def __init__(self, data: Path) -> None:
        self.path = data / KEYS_RECORD

    @property
    def is_there(self) -> bool:
        """Whether keys are required. A link that leads nowhere counts, too."""
        return self.path.is_symlink() or self.path.exists()

    def write(self) -> None:
        """Require keys from now on; durable on return. Raises OSError."""
        if self.is_there:
            return
        from chockstone.checkpoints.stores.posix import put_file  # late: who only reads has no need of it

        try:
            put_file(self.path, _CONTENT, may_replace=False)
        except FileExistsError:
            return  # another process has just written it
