"""Staging: the copies that ``dcp.async_save`` makes of a state, into host memory that is reused from save to save.

DCP's own copies go into new memory at each save, and touching new memory can take longer than copying. A save here
gives its memory back when the writer has read it, and the next save uses it again.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

_free: Final[list[DefaultStager]] = []  # one at most: it keeps the memory of one state
_lock: Final = threading.Lock()


def new_stager() -> DefaultStager:
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=torch.cuda.is_available(),
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
    )


def free_stagers() -> None:
    with _lock:
        _free.clear()


class WriterStaging:
    """The staged copies of one writer. A copy that may still be in use is never written to again."""

    def __init__(self) -> None:
        self._stager: DefaultStager | None = None  # of a copy that is in use
        self._has_overlapped = False  # this writer was asked for a copy while another was in use

    def stage(self, state: dict[str, Any]) -> Any:  # Any: the same structure, in host memory
        if self._stager is not None or self._has_overlapped:
            self._stager, self._has_overlapped = None, True  # which save is which cannot be told: reuse no memory
            return new_stager().stage(state)
        with _lock:
            self._stager = _free.pop() if _free else new_stager()
        return self._stager.stage(state)

    def end(self) -> None:
        """The copy has been read and is not needed any more."""
        with _lock:
            if self._stager is not None and not self._has_overlapped and not _free:
                _free.append(self._stager)
            self._stager = None

    def __reduce__(self) -> tuple[type[WriterStaging], tuple[()]]:
        """In another process there is nothing to give back: the memory belongs to this one."""
        return WriterStaging, ()
