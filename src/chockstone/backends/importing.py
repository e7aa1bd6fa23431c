"""Importing: large libraries, without the garbage collector looking over their shoulder."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Around the import of large libraries, in a process of our own: nothing that they make is garbage, now or later.

    To look for some again and again took a fifth of the time in which a worker starts.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
