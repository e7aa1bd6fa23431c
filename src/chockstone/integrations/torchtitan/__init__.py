"""torchtitan: a checkpoint manager that its trainer builds in place of its own.

    config.checkpoint = ChockstoneCheckpointManager.Config(enable=True, interval=500)

Imports torchtitan only when a name is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chockstone.integrations.torchtitan.manager import ChockstoneCheckpointManager

__all__ = ["ChockstoneCheckpointManager"]


def __getattr__(name: str) -> Any:  # Any: a class
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from chockstone.extras import require

    require("torchtitan", __name__)
    from chockstone.integrations.torchtitan.manager import ChockstoneCheckpointManager

    return ChockstoneCheckpointManager
