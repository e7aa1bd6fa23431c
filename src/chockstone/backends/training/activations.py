"""Activations: what the forward pass keeps for the backward pass, and activation checkpointing, which keeps less.

With activation checkpointing a decoder layer keeps its input only, and the backward pass computes the layer again. The
last sixth of the layers keeps its activations, where memory allows: it takes a sixth off the additional time. The
results have the same bits, so each process decides for each micro-batch by itself, and a replay may decide otherwise.

How much a model keeps is measured on three short sequences, when the first micro-batch is trained. All architectures of
transformers are measured alike; no formula knows their layers. The processes that hold a sharded model measure
together, and each decides by the memory of its own device: recomputing a layer takes no communication.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from chockstone.backends.run_spec import ActivationCheckpointing, Recomputed

log = logging.getLogger(__name__)
SHARE: Final = 0.5  # of the free memory that activations may take before they are computed twice instead
KEPT_PART: Final = 6  # where most layers recompute, the last of so many keeps its activations
_LENGTHS: Final = (8, 16, 32)  # tokens of the measured sequences
_MEMORY: Final = Path("/proc/meminfo")
_GROUP: Final = Path("/sys/fs/cgroup")
Measured = Callable[[int], object]  # runs a forward pass, with gradients, over one sequence of so many tokens


@dataclass(frozen=True, slots=True)
class ActivationBytes:
    """What the layers keep for one sequence: a part per token, and attention that keeps its scores a part per pair."""

    per_token: float
    per_pair: float

    def total(self, sequences: int, tokens: int) -> float:
        """``tokens`` of each sequence, padding included."""
        return sequences * tokens * (self.per_token + self.per_pair * tokens)


class _RecomputedLayer(nn.Module):
    """Comes before the class of a layer. A class, not a wrapper: copies of the model then have layers of their own."""

    recomputes: bool

    def forward(self, *values: Any, **named: Any) -> Any:  # Any: each architecture has its own arguments
        if not (self.recomputes and torch.is_grad_enabled()):
            return super().forward(*values, **named)
        return checkpoint(super().forward, *values, use_reentrant=False, preserve_rng_state=False, **named)


class Activations:
    """Decides for each micro-batch whether the layers of a model keep their activations."""

    def __init__(
        self,
        model: nn.Module,
        *,
        mode: ActivationCheckpointing = "auto",
        free_bytes: Callable[[torch.device], int | None] | None = None,
        recomputed: Recomputed | None = None,
    ) -> None:
        """Changes the classes of the model's layers, in place. Layers inside of layers are left alone.

        ``recomputed`` is the decision for all micro-batches, for plans. Nothing is measured then.
        """
        self._mode = mode
        self._recomputed = recomputed
        self._free_bytes = free_bytes or free_memory
        self._layers = [_make_recomputable(layer) for layer in outer_layers(model)]
        self._kept: ActivationBytes | None = None
        self._inputs: ActivationBytes | None = None  # of the layers, which is what they keep if they recompute
        self._few = len(self._layers) // KEPT_PART  # layers that keep their activations where most recompute
        self._newest = 0  # tokens of the newest micro-batch, if some of its layers kept their activations
        self._too_many = math.inf  # so many tokens ran out of memory when layers kept their activations

    @property
    def always_recomputes(self) -> bool:
        return self._mode == "on"

    @contextmanager
    def kept_or_recomputed(
        self, sequences: int, tokens: int, *, device: torch.device, measured: Measured
    ) -> Iterator[None]:
        """Surrounds the forward pass of one micro-batch."""
        self._set(self._decide(sequences, tokens, device, measured))
        try:
            yield
        finally:
            self._set("none")

    def kept_bytes(self, measured: Measured) -> ActivationBytes:
        """Measured at the first call."""
        if self._kept is None:
            self._kept = _fit({tokens: _count_kept(measured, tokens) for tokens in _LENGTHS})
            log.debug("activations measured bytes_per_token=%.0f bytes_per_pair=%.2f", *astuple(self._kept))
        return self._kept

    def least_bytes(self, sequences: int, tokens: int, measured: Measured) -> float:
        """What a micro-batch takes at least: its layers recompute, if they may, and one of them at a time keeps all."""
        kept = self.kept_bytes(measured).total(sequences, tokens)
        if self._mode == "off" or not self._layers:
            return kept
        if self._inputs is None:
            self._set("all")
            try:
                self._inputs = _fit({tokens: _count_kept(measured, tokens) for tokens in _LENGTHS})
            finally:
                self._set("none")
        return self._inputs.total(sequences, tokens) + kept / len(self._layers)

    def recompute_more(self) -> bool:
        """The newest micro-batch ran out of memory: from now on layers recompute micro-batches of its size.

        False if that changes nothing for it: its layers recomputed already, or they must not.
        """
        if self._mode == "off" or not self._newest:
            return False
        self._too_many, self._newest = min(self._too_many, self._newest), 0
        return True

    def _decide(self, sequences: int, tokens: int, device: torch.device, measured: Measured) -> Recomputed:
        self._newest = 0
        if not self._layers or self._mode == "off" or not torch.is_grad_enabled():
            return "none"
        recomputed = self._recomputed or self._choose(sequences, tokens, device, measured)
        if recomputed == "none" or (recomputed == "most" and self._few):
            self._newest = sequences * tokens
        return recomputed

    def _choose(self, sequences: int, tokens: int, device: torch.device, measured: Measured) -> Recomputed:
        if self._mode == "on" and not self._few:
            return "all"
        needed = self.kept_bytes(measured).total(sequences, tokens)  # all processes of a group measure together
        free_bytes = self._free_bytes(device)
        room = math.inf if free_bytes is None else SHARE * free_bytes
        if sequences * tokens >= self._too_many:
            return "all"
        if self._mode == "auto" and needed <= room:
            return "none"
        return "most" if needed * self._few / len(self._layers) <= room else "all"

    def _set(self, recomputed: Recomputed) -> None:
        kept = {"none": len(self._layers), "most": self._few, "all": 0}[recomputed]
        for number, layer in enumerate(reversed(self._layers)):
            layer.recomputes = number >= kept


def free_memory(device: torch.device) -> int | None:
    """What this process may still allocate, in bytes; None where the system does not say."""
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return free_bytes + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    limits = [_available_bytes(_MEMORY), _group_bytes(_GROUP)]
    return min((limit for limit in limits if limit is not None), default=None)


def _available_bytes(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _group_bytes(directory: Path) -> int | None:
    """What is left of the limit of a container. Cached files count as used there, but give way."""
    try:
        limit, used = (int((directory / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # "max": no limit
        return None
    return max(0, limit - used + min(used, _cached_bytes(directory / "memory.stat")))


def _cached_bytes(path: Path) -> int:
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
        return sum(int(size) for name, size in lines if name in ("active_file", "inactive_file"))
    except (OSError, ValueError):
        return 0


def outer_layers(model: nn.Module) -> list[nn.Module]:
    """Layers that transformers can recompute, in their order: those of the decoder."""
    found: list[nn.Module] = []
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if isinstance(module, GradientCheckpointingLayer):
            found.append(module)
        else:
            waiting += reversed(list(module.children()))
    return found


def _make_recomputable(layer: nn.Module) -> _RecomputedLayer:
    if not isinstance(layer, _RecomputedLayer):
        kind = type(layer)
        layer.__class__ = type(kind.__name__, (_RecomputedLayer, kind), {"__module__": kind.__module__})
    recomputed = cast("_RecomputedLayer", layer)
    recomputed.recomputes = False
    return recomputed


def _count_kept(measured: Measured, tokens: int) -> int:
    """Bytes of all tensors that the backward pass would need. Weights do not count."""
    kept: dict[int, int] = {}  # by address: tensors that share memory count once

    def count(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter):
            return tensor  # the memory of a sharded weight is freed after its layer and used again
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        measured(tokens)
    return sum(kept.values())


def _fit(kept: Mapping[int, int]) -> ActivationBytes:
    """From the bytes of three lengths. What does not depend on the length, such as weights, falls out."""
    (a, at_a), (b, at_b), (c, at_c) = sorted(kept.items())
    first, second = (at_b - at_a) / (b - a), (at_c - at_b) / (c - b)
    per_pair = max(0.0, (second - first) / (c - a))
    return ActivationBytes(second - per_pair * (b + c), per_pair)
