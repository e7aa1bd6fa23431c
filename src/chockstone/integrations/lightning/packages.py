"""Packages: Lightning exists under two names, ``lightning`` and ``pytorch_lightning``, with the same classes twice."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

from chockstone.extras import is_installed, require

_FABRIC: Final = {"lightning": "lightning.fabric", "pytorch_lightning": "lightning_fabric"}
_PYTORCH: Final = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def require_lightning(what: str) -> None:
    """Raise ExtraMissing unless Lightning is installed under one of its names."""
    if not installed():
        require("lightning", what)


def installed() -> list[str]:
    return [package for package in _PYTORCH if is_installed(package)]


def take(name: str, *, module: str = "") -> Any:  # Any: a class of Lightning
    """A class of the Lightning in use: of the package that is imported already, if only one of them is."""
    found = installed()
    imported = [package for package in found if package in sys.modules]
    package = (imported or found)[0]
    return getattr(import_module(f"{_PYTORCH[package]}{module}"), name)


def register_checkpoint_io(kind: type) -> None:
    """Make ``kind`` a ``CheckpointIO`` of every Lightning that is installed, so that Trainers of both take it."""
    for package in installed():
        fabric = _FABRIC[package]
        if is_installed(fabric):
            import_module(f"{fabric}.plugins.io.checkpoint_io").CheckpointIO.register(kind)
