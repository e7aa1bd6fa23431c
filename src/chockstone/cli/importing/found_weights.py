"""Found weights: what a directory of another program holds, as the files that a server imports.

A PEFT adapter is sent as it is. Other formats are written as safetensors first, in a directory of the caller. No code
of the source runs, no pickle of it is loaded, and no link in it is followed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from chockstone.checkpoints.errors import DamagedArchive, ImportRefused
from chockstone.checkpoints.format.safetensors_header import LENGTH_BYTES, header_bytes, parse_header
from chockstone.integrations.formats.reading.mapped_files import MappedFile, SourceDirectory, resolve
from chockstone.integrations.formats.reading.recognition import read_foreign
from chockstone.integrations.formats.writing.safetensors_export import ModelPart, find_model, write_safetensors
from chockstone.wire.layer_names import ATTENTION_LAYERS, IN_A_BLOCK

WeightFormat = Literal["PEFT", "TuFT", "SkyRL", "torch DCP", "safetensors"]
CONFIG: Final = "adapter_config.json"
ADAPTER: Final = "adapter_model.safetensors"
MODEL: Final = "model.safetensors"
_PICKLED_ADAPTER: Final = "adapter_model.bin"
_DCP: Final = ".metadata"
_INSIDE: Final[tuple[tuple[str, WeightFormat], ...]] = (  # where other programs keep a PEFT directory
    ("adapter", "TuFT"),
    ("lora_adapter", "SkyRL"),
    ("policy/lora_adapter", "SkyRL"),
)
_SKYRL_SHARD: Final = re.compile(r"(model|optim|extra_state)_world_size_\d+_rank_\d+\.pt")
_MATRIX: Final = re.compile(r"(?:.*base_model\.model\.)?(?P<layer>.+)\.(?P<name>lora_[AB])(?:\.default)?(?:\.weight)?")


@dataclass(frozen=True, slots=True)
class FoundWeights:
    format: WeightFormat
    rank: int  # 0: all weights of a model
    trains: Mapping[str, bool]  # train_attn, train_mlp and train_unembed: the layers that there are
    files: Mapping[str, MappedFile]  # by the names that the server takes
    left_out: tuple[tuple[str, str], ...] = ()  # names in the directory, and why each is not imported

    def check(self) -> None:
        """Raises ImportRefused if a file was changed since it was opened."""
        for file in self.files.values():
            file.check()


def find_weights(path: Path, work: Path, *, alpha: float | None = None) -> FoundWeights:
    """``work``: an empty directory for converted files. ``alpha``: of an adapter whose format does not tell it.

    Raises ImportRefused, with what to do instead.
    """
    found = resolve(path)
    if not found.is_dir():
        raise ImportRefused(f"{found.name!r} is a file; name the directory of the adapter or of the model")
    directory = SourceDirectory(found)
    if CONFIG in directory and _DCP not in directory:
        return _read_peft(directory, "PEFT")
    for place, program in _INSIDE:
        inner = directory.path / place
        if inner.is_dir() and not inner.is_symlink() and (inner / CONFIG).exists():
            left_out = tuple((name, f"not part of {place}") for name in directory.names if name != place.split("/")[0])
            return _read_peft(SourceDirectory(inner), program, left_out)
    policy = directory.path / "policy"
    names = [*directory.names, *(SourceDirectory(policy).names if policy.is_dir() else ())]
    if any(map(_SKYRL_SHARD.fullmatch, names)):
        raise ImportRefused(
            f"{directory.name!r} is a checkpoint of SkyRL with full weights, which are pickles, and no code of a "
            "checkpoint is run here. Export the model in SkyRL as a Hugging Face directory, and import that; a LoRA "
            "checkpoint of SkyRL has a folder lora_adapter, which is imported"
        )
    if _DCP in directory:
        return _read_dcp(directory, work, alpha)
    if any(name.endswith(".safetensors") for name in directory.names):
        tensors = find_model(read_foreign(directory.path, "safetensors").state, None)
        return _write_model("safetensors", tensors, work, _other_names(directory))
    shown = ", ".join(directory.names[:6]) or "nothing"
    raise ImportRefused(
        f"{directory.name!r} holds no weights that can be imported: it has {shown:.200}. Name a directory with "
        f"{CONFIG}, with safetensors files of a model, or of torch.distributed.checkpoint"
    )


def _read_peft(
    directory: SourceDirectory, program: WeightFormat, left_out: tuple[tuple[str, str], ...] = ()
) -> FoundWeights:
    if ADAPTER not in directory:
        hint = ": it is a pickle, and no code of a checkpoint is run here" if _PICKLED_ADAPTER in directory else ""
        raise ImportRefused(
            f"{directory.name!r} has no {ADAPTER}{f', but {_PICKLED_ADAPTER}' if hint else ''}{hint}. Save the adapter "
            "again with safe_serialization=True"
        )
    files = {name: directory.open(name) for name in (CONFIG, ADAPTER)}
    config = files[CONFIG].json()
    rank = config.get("r") if isinstance(config, dict) else None
    if type(rank) is not int or rank < 1:
        raise ImportRefused(f"{CONFIG!r} of {directory.name!r} tells no rank: 'r' is {rank!r:.80}. Copy it again")
    others = tuple((name, "not part of an adapter") for name in directory.names if name not in files)
    return FoundWeights(program, rank, _trains(_keys(files[ADAPTER])), files, (*left_out, *others))


def _read_dcp(directory: SourceDirectory, work: Path, alpha: float | None) -> FoundWeights:
    state = read_foreign(directory.path, "dcp").state
    part = find_model(state if any(key in state for key in ("model", "state_dict")) else {"model": state}, None)
    matrices = {key: found for key in part.tensors if (found := _MATRIX.fullmatch(key)) is not None}
    others = tuple((key, "not part of the model") for key in state if key != part.key and part.key in state)
    if not matrices:
        return _write_model("torch DCP", part.tensors, work, others)
    tensors = {
        f"base_model.model.{match['layer']}.{match['name']}.weight": part.tensors[key]
        for key, match in matrices.items()
    }
    if len(tensors) != len(matrices):
        raise ImportRefused(f"{directory.name!r} has several adapters; save one of them as a PEFT directory")
    first = next(iter(sorted(tensors)))
    rank = int(tensors[first].shape[0])
    kept = len(part.tensors) - len(matrices)
    if kept:
        others = (*others, (f"{kept} other tensors of {part.key!r}", "weights of the base model"))
    config = _config(directory, work, rank, alpha)
    write_safetensors(ModelPart("model", tensors, ()), work / ADAPTER, shard_bytes=1 << 62)
    files = {CONFIG: config, ADAPTER: MappedFile.open(work / ADAPTER)}
    return FoundWeights("torch DCP", rank, _trains(list(tensors)), files, others)


def _config(directory: SourceDirectory, work: Path, rank: int, alpha: float | None) -> MappedFile:
    """The configuration beside the shards, or one with the ``alpha`` that the user gave."""
    if CONFIG in directory:
        return directory.open(CONFIG)
    if alpha is None:
        raise ImportRefused(
            f"{directory.name!r} holds an adapter of rank {rank}, and does not tell its scale. Name it with --alpha: "
            "the lora_alpha with which the adapter was trained"
        )
    document = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "bias": "none"}
    (work / CONFIG).write_text(json.dumps(document))
    return MappedFile.open(work / CONFIG)


def _write_model(
    source: WeightFormat, tensors: Any, work: Path, left_out: tuple[tuple[str, str], ...]
) -> FoundWeights:  # Any: a ModelPart, or tensors by name
    part = tensors if isinstance(tensors, ModelPart) else ModelPart("model", tensors, ())
    write_safetensors(part, work / MODEL, shard_bytes=1 << 62)
    return FoundWeights(source, 0, {}, {MODEL: MappedFile.open(work / MODEL)}, left_out)


def _other_names(directory: SourceDirectory) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, "not weights")
        for name in directory.names
        if not name.endswith((".safetensors", ".safetensors.index.json"))
    )


def _keys(file: MappedFile) -> list[str]:
    try:
        size = header_bytes(file.read(0, LENGTH_BYTES), member=file.name, member_bytes=file.size)
        return list(parse_header(file.read(0, size), member=file.name, member_bytes=file.size))
    except DamagedArchive as error:
        raise ImportRefused(f"{file.name!r} is not a sound safetensors file: {error}. Copy it again") from error


def _trains(keys: list[str]) -> dict[str, bool]:
    """Which parts of a model the tensors of an adapter belong to. The server judges the names."""
    in_blocks = [key for key in keys if IN_A_BLOCK.search(key)]
    attention = [key for key in in_blocks if ATTENTION_LAYERS.search(key)]
    return {
        "train_attn": bool(attention),
        "train_mlp": len(in_blocks) > len(attention),
        "train_unembed": len(keys) > len(in_blocks),
    }
