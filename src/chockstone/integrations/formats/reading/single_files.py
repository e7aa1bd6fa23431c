"""Single files: a file of ``torch.save``, of Lightning or of safetensors as one checkpoint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from chockstone.checkpoints.errors import ImportRefused
from chockstone.integrations.formats.reading.foreign_checkpoint import ForeignCheckpoint
from chockstone.integrations.formats.reading.mapped_files import MappedFile
from chockstone.integrations.formats.reading.parts import account, find_step, find_step_in_name
from chockstone.integrations.formats.reading.safetensors_files import read_safetensors
from chockstone.integrations.formats.reading.torch_file import read_record, read_torch_file
from chockstone.integrations.formats.reading.type_notes import NOTES, apply_notes

MODEL: Final = "model"  # where the state dict of a module is stored
LIGHTNING_VERSION: Final = "pytorch-lightning_version"


def read_torch(file: MappedFile) -> ForeignCheckpoint:
    """A file of ``torch.save``; one of Lightning is recognised by its keys."""
    loaded = load_torch_state(file)
    if LIGHTNING_VERSION in loaded:
        return _lightning(file, loaded)
    is_module = type(loaded) is OrderedDict  # as module.state_dict() returns
    state = {MODEL: loaded} if is_module else loaded
    evidence = "torch.save of a module's state dict" if is_module else "torch.save of a dict"
    step, step_source = find_step(state)
    if step is None:
        step, step_source = find_step_in_name(file.name)
    return ForeignCheckpoint(
        "torch", evidence, state, account(state, file.name), step=step, step_source=step_source, check=file.check
    )


def read_lightning(file: MappedFile) -> ForeignCheckpoint:
    """A ``.ckpt`` of Lightning. Its keys stay as they are: Lightning's own names."""
    loaded = load_torch_state(file)
    if LIGHTNING_VERSION not in loaded:
        raise ImportRefused(
            f"{file.name!r} is a file of torch.save, but not of Lightning: it has no key {LIGHTNING_VERSION!r}. Import "
            "it with --from torch"
        )
    return _lightning(file, loaded)


def read_one_safetensors(file: MappedFile) -> ForeignCheckpoint:
    state = {MODEL: read_safetensors(file)}
    step, step_source = find_step_in_name(file.name)
    return ForeignCheckpoint(
        "safetensors",
        "the header of safetensors",
        state,
        account(state, file.name),
        step=step,
        step_source=step_source,
        check=file.check,
    )


def load_torch_state(file: MappedFile) -> Mapping[str, Any]:  # Any: what was saved
    """The mapping that a file of ``torch.save`` holds. Raises ImportRefused for anything else."""
    loaded = read_torch_file(file)
    if (notes := read_record(file, NOTES)) is not None:
        loaded = apply_notes(notes, loaded, name=file.name)
    if not isinstance(loaded, Mapping) or not all(type(key) is str for key in loaded):
        what = "a dict with keys that are no strings" if isinstance(loaded, Mapping) else f"a {type(loaded).__name__}"
        raise ImportRefused(
            f"{file.name!r} holds {what}, and a checkpoint is a dict of names. Save a dict, such as "
            "{'model': …, 'optimizer': …}, or pass --under NAME"
        )
    return loaded


def _lightning(file: MappedFile, loaded: Mapping[str, Any]) -> ForeignCheckpoint:
    version = loaded[LIGHTNING_VERSION]
    step, step_source = find_step(loaded)
    return ForeignCheckpoint(
        "lightning",
        f"the keys of a Lightning {str(version)[:20]} checkpoint",
        dict(loaded),
        account(loaded, file.name),
        step=step,
        step_source=step_source,
        check=file.check,
    )
