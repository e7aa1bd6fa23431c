"""Flyte 2: a ``flyte.Checkpoint`` that resumes from the newest good checkpoint of any earlier attempt.

Use ``checkpoint()`` instead of ``flyte.ctx().checkpoint``, or ``@resumable`` below ``@env.task``. Imports flyte only
when one of the names is used: flyte itself loads this package, see ``switch.install_if_asked``.
"""

from typing import TYPE_CHECKING

from chockstone.lazy_names import lazy_names

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

__getattr__ = lazy_names(
    __name__,
    {
        "Flyte2Checkpoint": "checkpointer",
        "CheckpointBlocked": "errors",
        "CheckpointUnreachable": "errors",
        "CheckpointsExhausted": "errors",
        "FlyteSdkChanged": "switch",
        "checkpoint": "switch",
        "install": "switch",
        "resumable": "switch",
    },
    needs="flyte2",
)
