"""Sampler weights: the weights that requests sample from, and the cache of them.

Weights are copied from a run or read from an archive, and are named by their archive. The cache drops those that were
not used for longest; they are read from the store when they are needed again. Weights whose archive is not on disk yet
stay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from chockstone.backends.export.peft_matrices import read_peft_matrices
from chockstone.backends.planning.refusals import available_bytes
from chockstone.backends.run_spec import ALPHA
from chockstone.backends.training.base_model import BaseModel
from chockstone.backends.training.run import TrainedRun
from chockstone.backends.training.saved_state import saved_adapter, saved_spec
from chockstone.sampling.adapter import Adapter
from chockstone.sampling.model import SampledModel
from chockstone.wire.failures import BadRequest

_PACKED_BYTES: Final = 1 << 30  # copies of a base model's matrices, at most
_PACKED_SHARE: Final = 4  # of the available memory: at most a quarter


@dataclass(frozen=True, slots=True)
class Weights:
    """A model, and perhaps an adapter on it. They do not change any more."""

    model: SampledModel
    adapter: Adapter | None
    size_bytes: int  # beyond the base model


def packable_bytes(device: torch.device) -> int:
    """Memory that copies of a base model's matrices may take, with which few rows decode faster."""
    free_bytes = available_bytes(device) if device.type == "cpu" else None
    return 0 if free_bytes is None else min(_PACKED_BYTES, free_bytes // _PACKED_SHARE)


def run_weights(run: TrainedRun, sampled: SampledModel) -> Weights:
    """Copy the run's weights as they are now."""
    if run.spec.is_full:
        return _own_model(run, sampled)
    return _on_base(sampled, run.adapter())


def read_weights(state: Mapping[str, Any], base: BaseModel, sampled: SampledModel) -> Weights:
    """The weights in a sampler archive or a training archive. Raises BadRequest for others and for other models."""
    spec = saved_spec(state)
    if state.get("encrypted"):
        raise BadRequest("the checkpoint is encrypted, so only its recipients can read it; sample from another one")
    if spec.is_full:
        run = TrainedRun(base, spec)
        run.load({"run": state["run"], "weights": state.get("model") or state["weights"]}, with_optimizer=False)
        return _own_model(run, sampled)
    if "adapter_model" in state:
        return _on_base(sampled, _from_peft(state["adapter_model"], spec.rank, base))
    return _on_base(sampled, saved_adapter(state, base.device))


def _on_base(sampled: SampledModel, adapter: Adapter) -> Weights:
    size = sum(tensor.nbytes for layer in adapter.layers.values() for tensor in (layer.down, layer.up))
    return Weights(sampled, adapter, size)


def _own_model(run: TrainedRun, sampled: SampledModel) -> Weights:
    copy, base = run.full_copy(), run.base
    model = SampledModel(
        copy.model,
        base.tokenizer,
        max_context=base.max_context,
        computing=copy.computing,
        records_routing=sampled.records_routing,
    )
    return Weights(model, None, copy.size_bytes)


def _from_peft(tensors: Mapping[str, torch.Tensor], rank: int, base: BaseModel) -> Adapter:
    copies = {name: tensor.to(base.device, copy=True) for name, tensor in tensors.items()}
    has_gate = not any(name.endswith(".experts.up_proj") for name in base.layers)
    layers = read_peft_matrices(
        copies, rank=rank, files=base.expert_files, first_name="gate_up_proj" if has_gate else "up_proj"
    )
    return Adapter(layers, ALPHA / rank)


class WeightsCache:
    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._weights: OrderedDict[str, Weights] = OrderedDict()
        self._unsaved: set[str] = set()  # archives that are not on disk yet
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._bytes

    @property
    def limit_bytes(self) -> int:
        return self._limit

    def get(self, archive: str) -> Weights | None:
        weights = self._weights.get(archive)
        if weights is not None:
            self._weights.move_to_end(archive)
        return weights

    def put(self, archive: str, weights: Weights, *, is_durable: bool) -> None:
        self.forget(archive)
        self._weights[archive] = weights
        self._bytes += weights.size_bytes
        if not is_durable:
            self._unsaved.add(archive)
        self._make_room(lambda name: name != archive)

    def saved(self, archive: str) -> None:
        """The archive is on disk now, so its weights may be dropped."""
        self._unsaved.discard(archive)
        self._make_room(lambda _: True)

    def forget(self, archive: str) -> None:
        self._unsaved.discard(archive)
        if (weights := self._weights.pop(archive, None)) is not None:
            self._bytes -= weights.size_bytes

    def _make_room(self, may_drop: Callable[[str], bool]) -> None:
        for name in list(self._weights):
            if self._bytes <= self._limit:
                return
            if may_drop(name) and name not in self._unsaved:
                self.forget(name)
