"""Exports: the state of an archive as files that other programs read.

    with Archive(open_store("./checkpoints").open("run-1/step-00001000")) as archive:
        export_checkpoint(archive, Path("step-1000.pt"), "torch")

Every byte is verified before it is written, and the target appears complete or not at all.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from chockstone.checkpoints.errors import ExportRefused
from chockstone.checkpoints.format.tree import STATE
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.restoring.restore import load_state

TargetFormat = Literal["torch", "safetensors", "dcp", "hf"]
SHARD_BYTES: Final = 5_000_000_000


@dataclass(frozen=True, slots=True)
class ExportedFiles:
    """The files of an export by name, with their sizes, and what is not in them as it was."""

    files: tuple[tuple[str, int], ...]
    notes: tuple[str, ...] = ()


def export_checkpoint(
    archive: Archive,
    target: Path,
    to: TargetFormat,
    *,
    part: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> ExportedFiles:
    """Write the state of ``archive`` to ``target``, which must not exist. Durable on return.

    ``part``: for safetensors, the top-level key that is the model. Raises ExportRefused, and DamagedArchive if a block
    differs from its digest; nothing is left behind then.
    """
    if os.path.lexists(target):  # before the archive is read
        raise ExportRefused(f"{str(target)!r} exists already; name a path that does not, or remove it first")
    if STATE not in archive.members:
        raise ExportRefused("the archive holds files and no state; export it with --to files")
    if to == "hf":
        from chockstone.integrations.hf_trainer.directory import export_hf_directory

        export_hf_directory(archive, target)
        return ExportedFiles(_files(target))
    state = load_state(archive)
    notes: tuple[str, ...] = ()
    if to == "torch":
        from chockstone.integrations.formats.writing.torch_export import write_torch_file

        notes = _describe(write_torch_file(state, target))
    elif to == "dcp":
        from chockstone.integrations.formats.writing.dcp_export import write_dcp_directory

        notes = _describe(write_dcp_directory(state, target))
    else:
        from chockstone.integrations.formats.writing.safetensors_export import find_model, write_safetensors

        model = find_model(state, part)
        write_safetensors(model, target, shard_bytes=shard_bytes, on_bytes=on_bytes)
        others = [key for key in state if key != model.key]
        skipped = (*others, *(f"{model.key}.{name}" for name in model.skipped))
        notes = (f"left out: {', '.join(skipped)[:200]}",) if skipped else ()
    return ExportedFiles(_files(target), notes)


def _describe(counts: Counter[str]) -> tuple[str, ...]:
    """What stands in for values that the format cannot hold."""
    return tuple(
        f"{count} of type {kind} stored as {'a set' if kind == 'frozenset' else 'a tensor'}"
        for kind, count in sorted(counts.items())
    )


def _files(target: Path) -> tuple[tuple[str, int], ...]:
    if target.is_file():
        return ((target.name, target.stat().st_size),)
    paths = sorted(path for path in target.rglob("*") if path.is_file())
    return tuple((path.relative_to(target).as_posix(), path.stat().st_size) for path in paths)
