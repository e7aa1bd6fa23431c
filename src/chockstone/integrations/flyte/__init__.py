"""flytekit 1.x: each attempt of a task resumes from the newest good checkpoint of any earlier attempt.

Uses flytekit and the checkpoint library. The names below are imported on first use, because ``layouts`` must be
importable without flytekit.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chockstone.integrations.flyte.checkpointer import FlyteCheckpoint, Options
    from chockstone.integrations.flyte.errors import FlytekitChanged, FreshStart
    from chockstone.integrations.flyte.switch import checkpoint, install, resumable

__all__ = ["FlyteCheckpoint", "FreshStart", "FlytekitChanged", "Options", "checkpoint", "install", "resumable"]

_HOMES = {
    "FlyteCheckpoint": "checkpointer",
    "Options": "checkpointer",
    "FreshStart": "errors",
    "FlytekitChanged": "errors",
    "checkpoint": "switch",
    "install": "switch",
    "resumable": "switch",
}


def __getattr__(name: str) -> Any:  # Any: whatever is asked for
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from chockstone.extras import require

    require("flyte", __name__)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
