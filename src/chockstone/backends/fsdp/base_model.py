"""Sharded base models: created without weights, sharded with FSDP2; each process reads only its own rows."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Final, cast

import torch
from safetensors import SafetensorError
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from chockstone.backends.export.base_files import BaseFiles
from chockstone.backends.fsdp.full_weights import ShardedWeights
from chockstone.backends.fsdp.model_shards import ModelShards
from chockstone.backends.fsdp.restore_templates import make_restore_template
from chockstone.backends.run_spec import ActivationCheckpointing
from chockstone.backends.training.base_model import (
    BaseModel,
    HeldModel,
    check_directory,
    choose_dtype,
    prepare_base_model,
)
from chockstone.backends.training.process_group import ProcessGroup
from chockstone.checkpoints.errors import ExportRefused
from chockstone.wire.failures import ServerFailure

_FAMILIES: Final = ("llama", "qwen3")  # model types with a known structure: decoder layers and a rotary embedding
_OLDEST_TORCH: Final = "2.13"  # the first with FSDPModule.reset_iter_state, which is needed after a refused pass
_BACKBONE: Final = "pass_through_backbone"


def load_sharded_base(
    name: str,
    directory: str | Path,
    *,
    device: str,
    dtype: str,
    activation_checkpointing: ActivationCheckpointing = "auto",
    process_group: ProcessGroup,
) -> BaseModel:
    """Like ``load_base_model``; called by all processes of the group, and raises the same ServerFailure in all."""
    directory = Path(directory)
    place = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)
    failure: ServerFailure | None = None
    try:
        model, tokenizer = _make_empty(name, directory, choose_dtype(name, dtype, place))
    except ServerFailure as error:
        failure = error
    process_group.raise_together(failure)
    shards = _shard(model, place, process_group)
    try:
        _read(name, directory, shards)
    except ServerFailure as error:
        failure = error
    process_group.raise_together(failure)
    _settle(shards, place)
    holding = HeldModel(
        backbone=getattr(model, _BACKBONE),
        own_weights=lambda: ShardedWeights(shards),
        process_group=process_group,
        computing=shards.computing,
        restore_template=lambda archive: make_restore_template(archive, shards),
        architecture=type(model).__name__.removeprefix("FSDP"),
    )
    return prepare_base_model(
        name, directory, model, tokenizer, holding=holding, activation_checkpointing=activation_checkpointing
    )


def _make_empty(
    name: str, directory: Path, dtype: torch.dtype | str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model on the meta device: shapes without numbers."""
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
    except Exception as error:  # each file format raises its own
        raise _unreadable(name, directory, error) from error
    if config.model_type not in _FAMILIES or getattr(config, "quantization_config", None):
        raise ServerFailure(
            f"model {name!r} is a {type(model).__name__}, which several workers cannot hold between them; "
            f"unquantised {' and '.join(_FAMILIES)} models can be sharded. Serve it with one worker."
        )
    return cast("PreTrainedModel", model), tokenizer


def _shard(model: PreTrainedModel, device: torch.device, process_group: ProcessGroup) -> ModelShards:
    mesh = init_device_mesh(device.type, (process_group.size,))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    body: Any = model.base_model  # Any: modules are found by name
    for layer in body.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    # The embedding, the last norm and the head, tied or not, are one FSDP group. It stays unsharded after the backbone,
    # since the head runs on chunks of rows, and ranks have different numbers of chunks.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # a loss is a sum over examples, on all ranks
            module.set_force_sum_reduction_for_comms(True)
    cast("FSDPModule", model).set_reduce_scatter_unused_params(True)  # a rank without examples does not run the head
    setattr(model, _BACKBONE, types.MethodType(_pass_through_backbone, model))
    register_fsdp_forward_method(model, _BACKBONE)
    model.to_empty(device=device)
    _tie(model)
    body.rotary_emb = type(body.rotary_emb)(config=model.config).to(device)  # its buffers are in no file
    return ModelShards(model, process_group)


def _pass_through_backbone(model: PreTrainedModel, **inputs: Any) -> Any:  # Any: as the backbone takes and returns them
    return model.base_model(**inputs)


def _tie(model: PreTrainedModel) -> None:
    """Tie the weights again: ``to_empty`` has given each module memory of its own."""
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers has no types here
    embeddings: Any = model.get_input_embeddings()  # Any: an Embedding
    if model.config.get_text_config().tie_word_embeddings:
        head._parameters["weight"] = embeddings._parameters["weight"]


@torch.no_grad()
def _read(name: str, directory: Path, shards: ModelShards) -> None:
    try:
        with BaseFiles(directory) as files:
            for key, share in shards.shares.items():
                stored = files.shapes.get(key)
                if stored is None or stored.extents != share.shape:
                    raise ServerFailure(
                        f"model {name!r}: the files in {str(directory)!r} do not have the weights that its config.json "
                        f"describes; {key!r} is missing or of another shape."
                    )
                if share.start < share.stop:
                    shards.local(key).copy_(files.rows(key, share.rows))
    except (OSError, SafetensorError, ExportRefused) as error:
        raise _unreadable(name, directory, error) from error


@torch.no_grad()
def _settle(shards: ModelShards, device: torch.device) -> None:
    """Run one forward pass through the root module: FSDP initialises itself lazily then."""
    with shards.computing():
        shards.model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=device), use_cache=False)


def _unreadable(name: str, directory: Path, error: Exception) -> ServerFailure:
    return ServerFailure(f"model {name!r} cannot be loaded from {str(directory)!r}: {type(error).__name__}: {error}")
