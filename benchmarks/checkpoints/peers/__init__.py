"""Peers: the other ways to keep a checkpoint, each with its default settings and made durable with fsync.

One file per package. None of them knows ours. ``gather`` builds all that can run on this machine and says
why the others cannot.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from benchmarks.checkpoints.contestant import Absent, Contestant

MODULES = {
    "torch.save": "pickled",
    "safetensors": "safetensors_file",
    "DCP": "distributed",
    "torchsnapshot": "torch_snapshot",
    "orbax": "orbax_tree",
    "directory, then tar": "tarred",
}


def gather(directory: Path) -> list[Contestant | Absent]:
    peers: list[Contestant | Absent] = []
    for name, module in MODULES.items():
        try:
            peers.extend(import_module(f"{__name__}.{module}").contestants(directory))
        except Exception as error:  # recorded: a peer that cannot start is reported, not hidden
            peers.append(Absent(name, f"{type(error).__name__}: {error}"))
    return peers
