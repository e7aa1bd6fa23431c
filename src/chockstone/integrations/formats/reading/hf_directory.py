"""Directories of the Hugging Face Trainer (``checkpoint-500``), in the parts that the adapter ``hf_trainer`` restores.

Model or adapter, optimizer, scheduler, scaler, the random generators of each rank and the state of the Trainer are
taken; configuration and tokenizer files become files of the archive. ``training_args.bin`` is a pickle of Python
objects and is never read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any, Final

from chockstone.checkpoints.errors import ImportRefused
from chockstone.checkpoints.restoring.random_state import join_ranks
from chockstone.integrations.formats.reading.directories import SAFETENSORS, read_model, take_files
from chockstone.integrations.formats.reading.foreign_checkpoint import ForeignCheckpoint, LeftOut
from chockstone.integrations.formats.reading.mapped_files import SourceDirectory
from chockstone.integrations.formats.reading.parts import account, find_step_in_name
from chockstone.integrations.formats.reading.safetensors_files import read_safetensors, read_sharded
from chockstone.integrations.formats.reading.single_files import MODEL, load_torch_state

TRAINER_STATE: Final = "trainer_state.json"
ADAPTER: Final = "adapter_model"
_TRAINING: Final = {"optimizer": "optimizer.pt", "scheduler": "scheduler.pt", "scaler": "scaler.pt"}
_RANDOM = re.compile(r"rng_state(?:_(\d{1,6}))?\.pth\Z")
_PICKLED_WEIGHTS: Final = ("pytorch_model.bin.index.json", "pytorch_model.bin", "adapter_model.bin")
_WHY: Final = {
    "training_args.bin": "a pickle of Python objects; make TrainingArguments again",
    "optimizer.bin": "optimizer of FSDP, sharded by rank; save with FULL_STATE_DICT",
}


def read_hf(directory: SourceDirectory) -> ForeignCheckpoint:
    """A checkpoint of the Trainer. Raises ImportRefused, also where it has no model."""
    state: dict[str, Any] = {}
    sources: dict[str, str] = {}
    key, used, tensors = _read_weights(directory)
    state[key], sources[key] = tensors, used[0]
    for part, name in _TRAINING.items():
        if name in directory:
            state[part], sources[part] = load_torch_state(directory.open(name)), name
    random_files = [name for name in directory.names if _RANDOM.match(name)]
    if random_files:
        state["random"], sources["random"] = _read_random(directory, random_files), random_files[0]
    step, step_source = find_step_in_name(directory.name)
    if TRAINER_STATE in directory:
        trainer_state = directory.open(TRAINER_STATE).json()
        if not isinstance(trainer_state, dict):
            raise ImportRefused(f"{TRAINER_STATE!r} of {directory.name!r} is not a JSON object; copy it again")
        state["trainer_state"], sources["trainer_state"] = trainer_state, TRAINER_STATE
        if type(found := trainer_state.get("global_step")) is int and found >= 0:
            step, step_source = found, f"{TRAINER_STATE}"
    files, left_out = take_files(directory, (*used, *sources.values(), *random_files))
    return ForeignCheckpoint(
        "hf",
        f"{sources[key]} beside {TRAINER_STATE}" if TRAINER_STATE in directory else sources[key],
        state,
        account(state, sources),
        tuple(LeftOut(name, _WHY.get(name, why)) for name, why in left_out),
        step=step,
        step_source=step_source,
        files=files,
        check=directory.check,
    )


def _read_weights(directory: SourceDirectory) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """Where the weights belong in the state, the files that hold them, and the tensors."""
    if f"{ADAPTER}{SAFETENSORS}" in directory:
        name = f"{ADAPTER}{SAFETENSORS}"
        return ADAPTER, (name,), read_safetensors(directory.open(name))
    for name in _PICKLED_WEIGHTS:
        if name not in directory or any(each.endswith(SAFETENSORS) for each in directory.names):
            continue
        key = ADAPTER if name.startswith(ADAPTER) else MODEL
        if not name.endswith(".json"):
            return key, (name,), dict(load_torch_state(directory.open(name)))
        tensors = read_sharded(directory, name, load_torch_state)
        return key, (name, *sorted(each for each in directory.opened if each != name)), tensors
    used, tensors = read_model(directory)
    return MODEL, used, tensors


def _read_random(directory: SourceDirectory, names: list[str]) -> dict[str, Any]:
    """The generators of each rank, as ``RandomState`` restores them."""
    by_rank = sorted((int(_rank_of(name)), name) for name in names)
    if [rank for rank, _ in by_rank] != list(range(len(by_rank))):
        raise ImportRefused(f"{directory.name!r} lacks the random state of a rank: it has {', '.join(names)[:200]}")
    generators = [_generators(directory, name) for _, name in by_rank]
    try:
        return join_ranks(generators)
    except (struct.error, RuntimeError, TypeError, ValueError) as error:
        raise ImportRefused(f"the random states of {directory.name!r} are not those of a Trainer: {error}") from error


def _rank_of(name: str) -> str:
    found = _RANDOM.match(name)
    return found[1] or "0" if found else "0"


def _generators(directory: SourceDirectory, name: str) -> Mapping[str, Any]:
    """The generators of one rank under our names: the Trainer calls that of torch "cpu"."""
    saved = load_torch_state(directory.open(name))
    if not {"python", "numpy", "cpu"} <= saved.keys():
        raise ImportRefused(f"{name!r} of {directory.name!r} is not a random state of the Trainer")
    found = {"python": saved["python"], "numpy": saved["numpy"], "torch": saved["cpu"]}
    devices = saved.get("cuda", ())
    if isinstance(devices, list | tuple):  # of all devices of the process; a rank restores one
        return found | {"cuda": devices[0]} if len(devices) == 1 else found
    return found | {"cuda": devices}
