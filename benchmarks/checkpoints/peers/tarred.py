"""Save a directory, then tar it: what servers do that must hand out one file.

The directory holds one safetensors file per group and is fsynced like the tar, as a script does that makes
each of its steps durable. The tuned variant is the best this approach can do: the directory is scratch that
never needs to reach the disk, and the copy into the tar uses large blocks.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Literal

from safetensors.torch import save_file

from benchmarks.checkpoints.contestant import Contestant, FreshNames
from benchmarks.checkpoints.states import State
from benchmarks.harness.disk import fsync_tree, remove

LARGE_COPY_BYTES = 1 << 20


def contestants(directory: Path) -> list[Contestant]:
    names = FreshNames(directory)

    def save_plain(state: State) -> Path:
        staging = _staged(state, names.next("staging"))
        fsync_tree(staging)
        return _archived(staging, mode="w")

    def save_tuned(state: State) -> Path:
        return _archived(_staged(state, names.next("staging")), mode="w", copy_bytes=LARGE_COPY_BYTES)

    def save_gzipped(state: State) -> Path:
        staging = _staged(state, names.next("staging"))
        fsync_tree(staging)
        return _archived(staging, mode="w:gz")

    return [
        Contestant("directory, then tar", save=save_plain),
        Contestant("directory, then tar, tuned", save=save_tuned),
        Contestant("directory, then tar.gz", save=save_gzipped, slow=True),
    ]


def _staged(state: State, staging: Path) -> Path:
    staging.mkdir()
    for group, tensors in state.tree.items():
        save_file(tensors, staging / f"{group}.safetensors")
    return staging


def _archived(staging: Path, *, mode: Literal["w", "w:gz"], copy_bytes: int | None = None) -> Path:
    """Tar the directory with the defaults of ``tarfile``, make the tar durable and remove the directory."""
    path = staging.with_suffix(".tar")
    with tarfile.open(path, mode) as archive:
        if copy_bytes is not None:
            archive.copybufsize = copy_bytes  # type: ignore[attr-defined]  # unknown to typeshed
        archive.add(staging, arcname=".")
    fsync_tree(path)
    remove(staging)
    return path
