"""A checkpoint of a Trainer as an ordinary ``checkpoint-N`` directory, which ``from_pretrained`` and a Trainer read.

Weights and small files are members of the archive and are copied, verified. Optimizer, scheduler, scaler and random
generators become the ``torch.save`` files that a Trainer loads with ``weights_only=True``. ``training_args.bin`` is not
written: it is a pickle of a class, and no Trainer needs it to resume.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from chockstone.checkpoints import Archive, restore_state
from chockstone.checkpoints.errors import ExportRefused
from chockstone.checkpoints.format.safetensors_header import SUFFIX
from chockstone.checkpoints.format.tree import STATE
from chockstone.checkpoints.restoring.export import write_members
from chockstone.checkpoints.restoring.new_directory import new_directory
from chockstone.checkpoints.restoring.random_state import states_of_ranks

# Names of the parts, as `parts.py` describes them. This file does not import it, because that imports transformers.
_MODEL: Final = "model"
_ADAPTER: Final = "adapter_model"
_TRAINER_STATE: Final = "trainer_state"
_FILES: Final = {"optimizer": "optimizer.pt", "scheduler": "scheduler.pt", "scaler": "scaler.pt"}
_RANDOM: Final = "random"


def export_hf_directory(archive: Archive, directory: Path) -> tuple[str, ...]:
    """Write a checkpoint into a new directory, whole or not at all; returns the names of its files.

    ``directory`` must not exist and its parent must. On return everything is durable. Raises ExportRefused if the
    archive holds neither a model nor an adapter.
    """
    weights = [name for name in archive.members if _is_weights(name)]
    if not weights:
        raise ExportRefused(
            f"the archive holds no part {_MODEL!r} and no part {_ADAPTER!r}, only {', '.join(archive.members)}; "
            "a Hugging Face directory needs one of them"
        )
    small = [name for name in archive.members if not name.endswith(SUFFIX) and name != STATE]
    state: dict[str, Any] = dict.fromkeys((*_FILES, _RANDOM, _TRAINER_STATE))
    restore_state(archive, state, strict=False)
    with new_directory(directory) as partial:
        chosen = [archive.members[name] for name in (*weights, *small)]
        write_members(archive, chosen, partial, on_bytes=lambda _: None, durable=True)
        _move_adapters(partial, weights)
        for part, name in _FILES.items():
            if state[part] is not None:
                _save(state[part], partial / name)
        if state[_RANDOM] is not None:
            _write_random(state[_RANDOM], partial)
        if state[_TRAINER_STATE] is not None:
            _write_trainer_state(state[_TRAINER_STATE], partial)
        return tuple(sorted(path.relative_to(partial).as_posix() for path in partial.rglob("*") if path.is_file()))


def _is_weights(member: str) -> bool:
    part = member.removesuffix(SUFFIX)
    return member.endswith(SUFFIX) and (part in (_MODEL, _ADAPTER) or part.startswith(f"{_ADAPTER}."))


def _move_adapters(partial: Path, weights: list[str]) -> None:
    """Adapters other than "default" have a directory of their own."""
    for member in weights:
        adapter = member.removesuffix(SUFFIX).partition(f"{_ADAPTER}.")[2]
        if adapter in (".", ".."):
            raise ExportRefused(f"the archive has an adapter of the name {adapter!r}, which is no name of a directory")
        if adapter:
            (partial / adapter).mkdir(exist_ok=True)
            os.rename(partial / member, partial / adapter / f"{_ADAPTER}{SUFFIX}")


def _write_random(state: Mapping[str, Any], partial: Path) -> None:
    """One file per rank, as the Trainer names and fills them."""
    ranks = states_of_ranks(state)
    for rank, generators in enumerate(ranks):
        saved = {"python": generators["python"], "numpy": generators["numpy"], "cpu": generators["torch"]}
        if "cuda" in generators and len(ranks) == 1:  # of several ranks, the Trainer wants the state of all devices
            saved["cuda"] = generators["cuda"]
        _save(saved, partial / ("rng_state.pth" if len(ranks) == 1 else f"rng_state_{rank}.pth"))


def _write_trainer_state(state: Mapping[str, Any], partial: Path) -> None:
    content = {**state, "best_model_checkpoint": None}  # that is the place of an archive
    with open(partial / "trainer_state.json", "x", encoding="utf-8") as file:
        json.dump(content, file, indent=2, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())


def _save(value: object, path: Path) -> None:
    with open(path, "xb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())
