"""Lazy names: what a package exports, imported on first use, so that importing the package costs nothing.

    __getattr__ = lazy_names(__name__, {"ArchiveReader": "reader", "ArchiveWriter": "writer"}, needs="torch")

Every room may import this file. Type checkers see the names through imports under ``TYPE_CHECKING``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from chockstone.extras import require


def lazy_names(
    package: str, homes: Mapping[str, str], *, needs: str | Callable[[str], None] | None = None
) -> Callable[[str], Any]:  # Any: a class or a function
    """The function ``__getattr__`` of ``package``. ``homes``: the module of each name, relative to the package.

    ``needs``: the extra that must be installed, or a function that raises ExtraMissing, given the package's name.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if isinstance(needs, str):
            require(needs, package)
        elif needs is not None:
            needs(package)
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find
