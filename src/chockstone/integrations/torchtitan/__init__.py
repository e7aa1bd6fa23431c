"""torchtitan: a checkpoint manager that its trainer builds in place of its own.

    config.checkpoint = ArchiveCheckpointManager.Config(enable=True, interval=500)

Imports torchtitan only when a name is used.
"""

from typing import TYPE_CHECKING

from chockstone.lazy_names import lazy_names

if TYPE_CHECKING:
    from chockstone.integrations.torchtitan.manager import ArchiveCheckpointManager

__all__ = ["ArchiveCheckpointManager"]

__getattr__ = lazy_names(__name__, {"ArchiveCheckpointManager": "manager"}, needs="torchtitan")
