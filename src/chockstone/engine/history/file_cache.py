"""The cache of history files: those that were read last, parsed, so that a page that is shown again is cheap."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from chockstone.engine.history.history_file import HistoryContents, HistoryFile
from chockstone.engine.history.points import HistoryPoint

MAX_CACHED_POINTS: Final = 64_000  # about 32 MB


class FileCache:
    """May be used by several threads."""

    def __init__(self, *, max_points: int = MAX_CACHED_POINTS) -> None:
        self._max_points = max_points
        self._lock = threading.Lock()
        self._contents: OrderedDict[str, HistoryContents] = OrderedDict()  # by path, the last used last

    def read(self, file: HistoryFile) -> Sequence[HistoryPoint]:
        """The points in the file; only what was appended since the last call is parsed.

        Raises HistoryTooNew, OSError.
        """
        with self._lock:
            known = self._contents.get(str(file.path))
        found = file.read(known)
        with self._lock:
            self._contents.pop(str(file.path), None)
            if found.header and len(found.points) <= self._max_points:
                self._contents[str(file.path)] = found
            while sum(len(each.points) for each in self._contents.values()) > self._max_points:
                self._contents.popitem(last=False)
        return found.points
