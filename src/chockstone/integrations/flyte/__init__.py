"""flytekit 1.x: each attempt of a task resumes from the newest good checkpoint of any earlier attempt.

Uses flytekit and the checkpoint library. The names below are imported on first use, because ``layouts`` must be
importable without flytekit.
"""

from typing import TYPE_CHECKING

from chockstone.lazy_names import lazy_names

if TYPE_CHECKING:
    from chockstone.integrations.flyte.checkpointer import FlyteCheckpoint, Options
    from chockstone.integrations.flyte.errors import FlytekitChanged, FreshStart
    from chockstone.integrations.flyte.switch import checkpoint, install, resumable

__all__ = ["FlyteCheckpoint", "FreshStart", "FlytekitChanged", "Options", "checkpoint", "install", "resumable"]

__getattr__ = lazy_names(
    __name__,
    {
        "FlyteCheckpoint": "checkpointer",
        "Options": "checkpointer",
        "FreshStart": "errors",
        "FlytekitChanged": "errors",
        "checkpoint": "switch",
        "install": "switch",
        "resumable": "switch",
    },
    needs="flyte",
)
