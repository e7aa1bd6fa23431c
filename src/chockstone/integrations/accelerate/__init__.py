"""Accelerate: an ``Accelerator`` whose ``save_state`` and ``load_state`` write and read archives.

    accelerator = ArchiveAccelerator()          # instead of accelerate.Accelerator
    accelerator.save_state("run/checkpoint_3")  # returns after one memory copy
    accelerator.load_state("run")               # the newest checkpoint that is not damaged

Knows Accelerate, torch and the checkpoint library. Names are imported on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chockstone.integrations.accelerate.accelerator import ArchiveAccelerator

__all__ = ["ArchiveAccelerator"]


def __getattr__(name: str) -> Any:  # Any: a class
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from chockstone.extras import require

    require("accelerate", __name__)
    from chockstone.integrations.accelerate.accelerator import ArchiveAccelerator

    return ArchiveAccelerator
