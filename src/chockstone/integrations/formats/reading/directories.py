"""Directories: safetensors with an index, and directories of ``torch.distributed.checkpoint``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from chockstone.checkpoints.errors import ImportRefused
from chockstone.checkpoints.format.layout import COMMIT, MANIFEST
from chockstone.checkpoints.format.tree import STATE
from chockstone.integrations.formats.reading.dcp_directory import METADATA, read_state
from chockstone.integrations.formats.reading.dcp_directory import SUFFIX as SHARD_SUFFIX
from chockstone.integrations.formats.reading.foreign_checkpoint import ForeignCheckpoint, LeftOut
from chockstone.integrations.formats.reading.mapped_files import SourceDirectory
from chockstone.integrations.formats.reading.parts import account, find_step, find_step_in_name
from chockstone.integrations.formats.reading.safetensors_files import INDEX_SUFFIX, read_safetensors, read_sharded
from chockstone.integrations.formats.reading.single_files import MODEL
from chockstone.integrations.formats.reading.type_notes import NOTES, apply_notes

SAFETENSORS: Final = ".safetensors"
_PLAIN_SUFFIXES: Final = (".json", ".jinja", ".md", ".model", ".tiktoken", ".txt")
_MAX_FILE_BYTES: Final = 256 * 1024**2
_RESERVED: Final = (STATE, MANIFEST, COMMIT)


def read_safetensors_directory(directory: SourceDirectory) -> ForeignCheckpoint:
    """The model of a directory: the files that its index names, or its one safetensors file."""
    used, tensors = read_model(directory)
    state = {MODEL: tensors}
    files, left_out = take_files(directory, used)
    step, step_source = find_step_in_name(directory.name)
    return ForeignCheckpoint(
        "safetensors",
        used[0],
        state,
        account(state, used[0]),
        left_out,
        step=step,
        step_source=step_source,
        files=files,
        check=directory.check,
    )


def read_model(directory: SourceDirectory) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of the files that hold the model, the index first, and its tensors by name."""
    indices = [name for name in directory.names if name.endswith(INDEX_SUFFIX)]
    if len(indices) == 1:
        tensors = read_sharded(directory, indices[0], read_safetensors)
        return (indices[0], *sorted(name for name in directory.opened if name.endswith(SAFETENSORS))), tensors
    singles = [name for name in directory.names if name.endswith(SAFETENSORS)]
    if len(indices) > 1 or len(singles) != 1:
        raise ImportRefused(
            f"{directory.name!r} has {len(indices)} indices and {len(singles)} safetensors files, so it is not clear "
            "which of them are the model. Import one file, or keep one index"
        )
    return (singles[0],), read_safetensors(directory.open(singles[0]))


def take_files(directory: SourceDirectory, used: Iterable[str]) -> tuple[dict[str, Path | bytes], tuple[LeftOut, ...]]:
    """Configuration and tokenizer files, as members of the archive, and what else is in the directory."""
    files: dict[str, Path | bytes] = {}
    left_out: list[LeftOut] = []
    for name in directory.names:
        if name in used:
            continue
        why = _why_not(directory.path / name)
        if why is None:
            files[name] = directory.path / name
        else:
            left_out.append(LeftOut(name, why))
    return files, tuple(left_out)


def read_dcp(directory: SourceDirectory) -> ForeignCheckpoint:
    """A directory of ``dcp.save``: its nested state, assembled from the shards of all ranks."""
    shards = [name for name in directory.names if name.endswith(SHARD_SUFFIX)]
    state = read_state(directory)
    if NOTES in directory:
        state = apply_notes(directory.open(NOTES).content(), state, name=directory.name)
    else:
        state = {key: _with_numbers(value) for key, value in state.items()}
    left = [name for name in directory.names if name not in (METADATA, NOTES, *shards)]
    step, step_source = find_step(state)
    if step is None:
        step, step_source = find_step_in_name(directory.name)
    return ForeignCheckpoint(
        "dcp",
        f"{METADATA} beside {len(shards)} {SHARD_SUFFIX} files",
        state,
        account(state, f"*{SHARD_SUFFIX}"),
        tuple(LeftOut(name, "not part of DCP's state; import it by itself") for name in left),
        step=step,
        step_source=step_source,
        check=directory.check,
    )


def _with_numbers(value: Any) -> Any:
    """The state of an optimizer with numbers as keys, as its parameter groups have them: DCP made them text."""
    if not isinstance(value, dict) or not {"state", "param_groups"} <= value.keys():
        return value
    states, groups = value["state"], value["param_groups"]
    if not isinstance(states, dict) or not isinstance(groups, list):
        return value
    names = [name for group in groups if isinstance(group, dict) for name in group.get("params", ())]
    by_text = {str(name): name for name in names if isinstance(name, int)}
    return {**value, "state": {by_text.get(key, key): item for key, item in states.items()}}


def _why_not(path: Path) -> str | None:
    """Why a file of a model's directory is not taken; None if it is."""
    if path.is_symlink():
        return "a link"
    if not path.is_file():
        return "not a regular file"
    if path.name in _RESERVED:
        return "its name is reserved in an archive"
    if not path.name.endswith(_PLAIN_SUFFIXES):
        return "neither weights, configuration nor tokenizer"
    return "too large for a configuration file" if os.path.getsize(path) > _MAX_FILE_BYTES else None
