"""Sharded base models: created without weights, sharded with FSDP2; each process reads only its own rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from chockstone.backends.export.base_files import BaseFiles
from chockstone.backends.export.weight_sources import WeightSource, find_sources, find_ties
from chockstone.backends.fsdp.full_weights import ShardedWeights
from chockstone.backends.fsdp.model_shards import ModelShards
from chockstone.backends.fsdp.restore_templates import make_restore_template
from chockstone.backends.fsdp.sharding import BACKBONE, compute_buffers, shard_model
from chockstone.backends.fsdp.weight_files import check_ties, read_sources
from chockstone.backends.quantisation.layers import quantise_empty
from chockstone.backends.run_spec import ActivationCheckpointing, BasePrecision
from chockstone.backends.training.base_model import (
    BaseModel,
    HeldModel,
    check_directory,
    choose_dtype,
    prepare_base_model,
)
from chockstone.backends.training.process_group import ProcessGroup
from chockstone.wire.failures import ServerFailure

_OLDEST_TORCH: Final = "2.13"  # the first with FSDPModule.reset_iter_state, which is needed after a refused pass


def load_sharded_base(
    name: str,
    directory: str | Path,
    *,
    device: str,
    dtype: str,
    base_precision: BasePrecision = "auto",
    activation_checkpointing: ActivationCheckpointing = "auto",
    process_group: ProcessGroup,
) -> BaseModel:
    """Like ``load_base_model``; called by all processes of the group, and raises the same ServerFailure in all."""
    directory = Path(directory)
    place = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)
    with _together(process_group):
        empty = _make_empty(name, directory, choose_dtype(name, dtype, place))
    model = empty.model
    quantise_empty(model, base_precision)
    with _together(process_group):
        shards = _shard(name, model, place, process_group)
    with _together(process_group):
        _read(name, directory, shards, empty)
    with _together(process_group):
        _settle(name, shards, place)
    holding = HeldModel(
        backbone=getattr(model, BACKBONE),
        own_weights=lambda: ShardedWeights(shards),
        process_group=process_group,
        computing=shards.computing,
        restore_template=lambda archive: make_restore_template(archive, shards),
        architecture=type(model).__name__.removeprefix("FSDP"),
    )
    return prepare_base_model(
        name, directory, model, empty.tokenizer, holding=holding, activation_checkpointing=activation_checkpointing
    )


@contextmanager
def _together(process_group: ProcessGroup) -> Iterator[None]:
    """A ServerFailure of one process inside is raised by all at the end."""
    failure: ServerFailure | None = None
    try:
        yield
    except ServerFailure as error:
        failure = error
    process_group.raise_together(failure)


@dataclass(frozen=True, slots=True)
class _EmptyModel:
    """A model on the meta device: shapes without numbers, and buffers with their numbers."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    sources: dict[str, WeightSource]
    ties: dict[str, str]


def _make_empty(name: str, directory: Path, dtype: torch.dtype | str) -> _EmptyModel:
    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ServerFailure(f"several workers need torch {_OLDEST_TORCH} or newer; this is {torch.__version__}.")
    check_directory(name, directory)
    try:
        config: Any = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        number_type = dtype if isinstance(dtype, torch.dtype) else config.dtype or torch.float32
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # transformers has no types here
                config, dtype=number_type, trust_remote_code=False
            )
        if (directory / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(directory, local_files_only=True)
        model.eval()
        compute_buffers(model)
        ties = find_ties(model)
        with BaseFiles(directory) as files:
            sources = find_sources(model, files.shapes)
            check_ties(sources, files, ties)
    except Exception as error:  # each file format raises its own
        raise _unreadable(name, directory, error) from error
    if getattr(config, "quantization_config", None):
        raise _unsharded(name, model, "its weights are quantised")
    return _EmptyModel(model, tokenizer, sources, ties)


def _shard(name: str, model: PreTrainedModel, device: torch.device, process_group: ProcessGroup) -> ModelShards:
    try:
        return shard_model(model, device, process_group)
    except ValueError as error:  # a weight that FSDP does not shard, such as a single number
        raise _unsharded(name, model, str(error)) from error


@torch.no_grad()
def _read(name: str, directory: Path, shards: ModelShards, empty: _EmptyModel) -> None:
    try:
        with BaseFiles(directory) as files:
            read_sources(shards, files, empty.sources, empty.ties)
    except Exception as error:  # as above
        raise _unreadable(name, directory, error) from error


@torch.no_grad()
def _settle(name: str, shards: ModelShards, device: torch.device) -> None:
    """Run the model once: FSDP initialises itself lazily then. A model that FSDP cannot run fails in all processes."""
    tokens_BT = torch.arange(4, device=device)[None]
    model = cast("Any", shards.model)  # Any: FSDP adds its methods to the class
    try:
        model(input_ids=tokens_BT, use_cache=False)
        model.reset_iter_state()
        getattr(model, BACKBONE)(input_ids=tokens_BT, use_cache=False)
    except Exception as error:  # whatever the architecture does that FSDP does not know
        raise _unsharded(name, shards.model, f"{type(error).__name__}: {error}") from error
    finally:
        model.reset_iter_state()


def _unsharded(name: str, model: PreTrainedModel, why: str) -> ServerFailure:
    kind = type(model).__name__.removeprefix("FSDP")
    return ServerFailure(
        f"model {name!r} is a {kind}, which several workers cannot hold between them: {why}. Serve it with one worker."
    )


def _unreadable(name: str, directory: Path, error: Exception) -> ServerFailure:
    why = str(error) if isinstance(error, ServerFailure) else f"{type(error).__name__}: {error}"
    return ServerFailure(f"model {name!r} cannot be loaded from {str(directory)!r}: {why}")
