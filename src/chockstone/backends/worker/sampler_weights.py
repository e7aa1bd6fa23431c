"""Sampler weights: what a request samples from, taken from a live run or read from an archive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from chockstone.backends.run_spec import ALPHA
from chockstone.backends.training.base_model import BaseModel
from chockstone.backends.training.run import TrainedRun
from chockstone.backends.training.saved_state import saved_adapter, saved_spec
from chockstone.sampling.adapter import Adapter, LowRank
from chockstone.sampling.model import SampledModel
from chockstone.wire.failures import BadRequest


@dataclass(frozen=True, slots=True)
class Weights:
    """A model, and perhaps an adapter on it. Nobody changes them any more."""

    model: SampledModel
    adapter: Adapter | None
    size_bytes: int  # beyond the base model


def run_weights(run: TrainedRun, sampled: SampledModel) -> Weights:
    """A copy of the run's weights as they are now."""
    if run.spec.is_full:
        return _own_model(run)
    return _on_base(sampled, run.adapter())


def read_weights(state: Mapping[str, Any], base: BaseModel, sampled: SampledModel) -> Weights:
    """Of a sampler's archive or a training archive; BadRequest when it is neither, or of another model."""
    spec = saved_spec(state)
    if state.get("encrypted"):
        raise BadRequest("the checkpoint is encrypted, so only its recipients can read it; sample from another one")
    if spec.is_full:
        run = TrainedRun(base, spec)
        run.load({"run": state["run"], "weights": state.get("model") or state["weights"]}, with_optimizer=False)
        return _own_model(run)
    if "adapter_model" in state:
        return _on_base(sampled, _from_peft(state["adapter_model"], ALPHA / spec.rank, base.device))
    return _on_base(sampled, saved_adapter(state, base.device))


def _on_base(sampled: SampledModel, adapter: Adapter) -> Weights:
    size = sum(tensor.nbytes for layer in adapter.layers.values() for tensor in (layer.down, layer.up))
    return Weights(sampled, adapter, size)


def _own_model(run: TrainedRun) -> Weights:
    copy, base = run.full_copy(), run.base
    model = SampledModel(copy.model, base.tokenizer, max_context=base.max_context, computing=copy.computing)
    return Weights(model, None, copy.size_bytes)


def _from_peft(tensors: Mapping[str, torch.Tensor], scale: float, device: torch.device) -> Adapter:
    names = [name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")]
    layers = {
        name.removeprefix("base_model.model."): LowRank(
            tensors[f"{name}.lora_A.weight"].to(device, copy=True),
            tensors[f"{name}.lora_B.weight"].to(device, copy=True),
        )
        for name in names
    }
    return Adapter(layers, scale)
