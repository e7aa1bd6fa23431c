"""Accelerate: an ``Accelerator`` whose ``save_state`` and ``load_state`` write and read archives.

    accelerator = ArchiveAccelerator()          # instead of accelerate.Accelerator
    accelerator.save_state("run/checkpoint_3")  # returns after one memory copy
    accelerator.load_state("run")               # the newest checkpoint that is not damaged

Knows Accelerate, torch and the checkpoint library. Names are imported on first use.
"""

from typing import TYPE_CHECKING

from chockstone.lazy_names import lazy_names

if TYPE_CHECKING:
    from chockstone.integrations.accelerate.accelerator import ArchiveAccelerator

__all__ = ["ArchiveAccelerator"]

__getattr__ = lazy_names(__name__, {"ArchiveAccelerator": "accelerator"}, needs="accelerate")
