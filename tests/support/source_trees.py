"""Parsed sources, for tests that hold rules of the code.

Each process parses a file once. A tree is thousands of objects that stay, and a garbage collection that walks them
takes longer than to parse them.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[2] / "src" / "chockstone"


@cache
def source_paths() -> tuple[Path, ...]:
    return tuple(sorted(SOURCE.rglob("*.py")))


@cache
def source_trees() -> dict[Path, ast.Module]:
    """The tree of each file of the package."""
    with uncollected():
        return {path: ast.parse(path.read_text()) for path in source_paths()}


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection looks at what the block creates, now or later: for objects that stay."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
