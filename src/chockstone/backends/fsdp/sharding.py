"""Sharding: any model of transformers, created without weights, as groups of weights that FSDP2 gathers together.

Each decoder layer is a group. The rest (the embedding, the last norm, the head) is one group, and so are layers that
share weights with other modules: FSDP2 ties weights inside a group only.
"""

from __future__ import annotations

import types
from typing import Any, Final, cast

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from transformers import PreTrainedModel

from chockstone.backends.fsdp.model_shards import ModelShards
from chockstone.backends.training.activations import outer_layers
from chockstone.backends.training.process_group import ProcessGroup
from chockstone.wire.failures import ServerFailure

BACKBONE: Final = "pass_through_backbone"
Slots = list[tuple[nn.Module, str]]  # modules that have the same weight, each with the attribute


def shard_model(model: PreTrainedModel, device: torch.device, process_group: ProcessGroup) -> ModelShards:
    """Shard a model on the meta device whose buffers are computed already. Its weights get memory, without values."""
    slots = _find_slots(model)
    mesh = init_device_mesh(device.type, (process_group.size,))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in _separate_layers(model, slots):
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    # This group stays unsharded after the backbone, since the head runs on chunks of rows, and ranks have different
    # numbers of chunks.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # a loss is a sum over examples, on all ranks
            module.set_force_sum_reduction_for_comms(True)
    cast("FSDPModule", model).set_reduce_scatter_unused_params(True)  # a rank without examples does not run the head
    setattr(model, BACKBONE, types.MethodType(_pass_through_backbone, model))
    register_fsdp_forward_method(model, BACKBONE)
    _allocate(model, device, slots)
    return ModelShards(model, process_group)


@torch.no_grad()
def compute_buffers(model: PreTrainedModel) -> None:
    """Give the buffers of a model on the meta device memory on the CPU, and the values that from_pretrained gives them.

    Since version 5 each class of transformers can compute its buffers again. Raises ServerFailure if one is left out.
    """
    blank: dict[str, torch.Tensor] = {}
    for module_name, module in model.named_modules():
        setattr(module, "_is_hf_initialized", False)  # noqa: B010  # no attribute of nn.Module
        for name, buffer in module._buffers.items():
            if buffer is not None:
                filled = torch.zeros(buffer.shape, dtype=buffer.dtype, device="cpu")
                module._buffers[name] = filled.fill_(float("nan")) if filled.is_floating_point() else filled
                if name in module._non_persistent_buffers_set:
                    blank[f"{module_name}.{name}"] = module._buffers[name]
    for weight in model.parameters():
        setattr(weight, "_is_hf_initialized", True)  # noqa: B010  # what from_pretrained sets on a weight that was read
    model.initialize_weights()  # type: ignore[no-untyped-call]  # transformers has no types here
    left = [name for name, buffer in blank.items() if buffer.is_floating_point() and bool(buffer.isnan().any())]
    if left:
        raise ServerFailure(f"its buffer {left[0]!r} is in no file, and its class does not compute it again")


def _find_slots(model: nn.Module) -> list[Slots]:
    """All weights, each with the modules that have it."""
    slots: dict[int, Slots] = {}
    for module in model.modules():
        for attribute, weight in module._parameters.items():
            if weight is not None:
                slots.setdefault(id(weight), []).append((module, attribute))
    return list(slots.values())


def _separate_layers(model: PreTrainedModel, slots: list[Slots]) -> list[nn.Module]:
    """The layers that share no weight with a module outside of them."""
    owners: dict[nn.Module, nn.Module] = {}
    layers = outer_layers(model) or _longest_list(model)
    for layer in layers:
        owners.update(dict.fromkeys(layer.modules(), layer))
    bound: set[nn.Module] = set()
    for places in slots:
        found = {owners.get(module, model) for module, _ in places}
        bound |= found if len(found) > 1 else set()
    return [layer for layer in layers if layer not in bound and next(layer.parameters(), None) is not None]


def _longest_list(model: nn.Module) -> list[nn.Module]:
    """The largest list of modules in a model whose layers do not say that they are layers."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=_count_weights, default=[])


def _count_weights(modules: list[nn.Module]) -> int:
    return sum(weight.numel() for module in modules for weight in module.parameters())


def _allocate(model: nn.Module, device: torch.device, slots: list[Slots]) -> None:
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    model.to_empty(device=device)
    for module, values in buffers:
        for name, value in values.items():
            module._buffers[name] = None if value is None else value.to(device)
    for (module, attribute), *others in slots:  # to_empty has given each module memory of its own
        for other, name in others:
            other._parameters[name] = module._parameters[attribute]


def _pass_through_backbone(model: PreTrainedModel, **inputs: Any) -> Any:  # Any: as the backbone takes and returns them
    output = model.base_model(**inputs)
    if output.last_hidden_state._is_view():  # FSDP hooks the backward pass to the output, and warns of views
        output.last_hidden_state = output.last_hidden_state.clone()
    return output
