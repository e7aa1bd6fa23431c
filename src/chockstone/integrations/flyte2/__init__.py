"""Flyte 2: a ``flyte.Checkpoint`` that resumes from the newest good checkpoint of any earlier attempt.

Use ``checkpoint()`` instead of ``flyte.ctx().checkpoint``, or ``@resumable`` below ``@env.task``. Imports flyte only
when one of the names is used: flyte itself loads this package, see ``switch.install_if_asked``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chockstone.integrations.flyte2.checkpointer import Flyte2Checkpoint
    from chockstone.integrations.flyte2.errors import CheckpointBlocked, CheckpointsExhausted, CheckpointUnreachable
    from chockstone.integrations.flyte2.switch import FlyteSdkChanged, checkpoint, install, resumable

__all__ = [
    "Flyte2Checkpoint",
    "CheckpointBlocked",
    "CheckpointUnreachable",
    "CheckpointsExhausted",
    "FlyteSdkChanged",
    "checkpoint",
    "install",
    "resumable",
]

_HOMES = {
    "Flyte2Checkpoint": "checkpointer",
    "CheckpointBlocked": "errors",
    "CheckpointUnreachable": "errors",
    "CheckpointsExhausted": "errors",
}


def __getattr__(name: str) -> Any:  # Any: a class or a function
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from chockstone.extras import require

    require("flyte2", __name__)
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'switch')}"), name)
