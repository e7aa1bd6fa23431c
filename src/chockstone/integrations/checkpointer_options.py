"""Options that every adapter takes under the same names, and passes to ``Checkpointer``."""

from __future__ import annotations

from typing import Final, TypedDict

from chockstone.checkpoints import Admission

RANK_TIMEOUT_SECONDS: Final = 300.0


class CheckpointerOptions(TypedDict, total=False):
    """How an adapter saves. Defaults are those of ``Checkpointer``, unless the adapter says otherwise."""

    admission: Admission | None  # what a save must fulfil before it writes; None: enough free space
    buffers: int  # saves under way at once, each with a copy of the state in host memory
    bytes_per_second: float | None  # rate limit of writes while no caller waits for the save; None: no limit
    rank_timeout_seconds: float  # a rank that sends nothing for so long counts as lost
