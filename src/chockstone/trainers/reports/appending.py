"""Appending: whole records at the end of a file, for readers who may come at any time."""

from __future__ import annotations

import os


def append_whole(descriptor: int, data: bytes) -> None:
    """With one write, unless the disk takes only a part; if it will not take the rest, nothing of it stays.

    For a file that this process alone appends to. It is not durable on return, only safe from a kill of this process.
    """
    size_bytes = os.fstat(descriptor).st_size
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        os.ftruncate(descriptor, size_bytes)
        raise
