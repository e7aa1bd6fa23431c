# tensors carry their axes
"""LoRA: low-rank additions to a shared base model, one set per run.

The base model's linear layers and routed experts are made *adaptable* once. A run sets its matrices on them during one
micro-batch and removes them again, so any number of runs share one model. The arithmetic and the initial values are
those of PEFT: ``y = W x + b + scale * up @ (down @ x)``, with ``up`` zero initially. Each expert has matrices of its
own. The router is not trained.

Shapes: B batch, N rows (all leading axes in one), I in, O out, R rank, E experts.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from chockstone.backends.run_spec import ALPHA, RunSpec
from chockstone.backends.training.flat_parameters import FlatParameters
from chockstone.backends.training.process_group import SINGLE_PROCESS, ProcessGroup
from chockstone.sampling.adapter import Adapter, LowRank
from chockstone.sampling.experts.modules import ExpertProjection, expert_projections, make_experts_adaptable
from chockstone.sampling.products.matmul import linear, matmul
from chockstone.sampling.quantised.linear import QuantisedLinear, frozen_weight
from chockstone.sampling.quantised.weight import FrozenWeight, QuantisedWeight, dense
from chockstone.wire.failures import BadRequest
from chockstone.wire.layer_names import ATTENTION_LAYERS, IN_A_BLOCK

_ROUTER = re.compile(r"gate|router", re.IGNORECASE)


class AdaptableLinear(nn.Linear):
    """A linear layer that adds the low-rank product of the ``active`` adapter."""

    active: LowRank | None
    scale: float

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # nn.Linear's own name
        weight = frozen_weight(self)
        if self.active is None:
            if isinstance(weight, QuantisedWeight) or not weight.requires_grad:
                return _frozen_linear(input, weight, self.bias)
            return functional.linear(input, weight, self.bias)
        x_NI = input.reshape(-1, self.in_features)
        y_NO = _adapted_linear(x_NI, weight, self.bias, self.active.down, self.active.up, self.scale)
        return y_NO.view(*input.shape[:-1], self.out_features)

    def matrix_shapes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of ``lora_A`` and ``lora_B``."""
        return (rank, self.in_features), (self.out_features, rank)


class AdaptableConv1D(AdaptableLinear):
    """The linear layer of GPT-2, whose weight is stored as [I, O]."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # as above
        x_NI = input.reshape(-1, self.in_features)
        if self.active is None:
            y_NO = torch.addmm(self.bias, x_NI, self.weight)
        else:
            y_NO = _adapted_linear(x_NI, self.weight.T, self.bias, self.active.down, self.active.up, self.scale)
        return y_NO.view(*input.shape[:-1], self.out_features)


class AdaptableQuantisedLinear(QuantisedLinear, AdaptableLinear):
    """The same with a quantised weight. Forward and backward pass dequantise it, and keep no numbers of it."""

    forward = AdaptableLinear.forward


Adaptable = AdaptableLinear | ExpertProjection


def make_adaptable(model: nn.Module) -> dict[str, Adaptable]:
    """Let plain linear layers and routed experts of ``model`` take adapters, in place; returns them by name."""
    layers: dict[str, Adaptable] = {}
    for name, module in model.named_modules():
        is_falcons = type(module).__name__ == "FalconLinear"  # it computes what nn.Linear does
        if type(module) in (nn.Linear, Conv1D) or is_falcons:
            adaptable = cast("AdaptableLinear", module)
            if isinstance(module, Conv1D):
                adaptable.in_features, adaptable.out_features = module.nx, module.nf
            module.__class__ = AdaptableConv1D if isinstance(module, Conv1D) else AdaptableLinear
            adaptable.active, adaptable.scale = None, 0.0
        elif type(module) is QuantisedLinear:
            module.__class__ = AdaptableQuantisedLinear
            quantised = cast("AdaptableQuantisedLinear", module)
            quantised.active, quantised.scale = None, 0.0
        if isinstance(module, AdaptableLinear):
            layers[name] = module
    return layers | expert_projections(make_experts_adaptable(model))


class LoraWeights:
    """One run's matrices, ``<layer>.lora_A`` and ``<layer>.lora_B``, for each layer it trains.

    They are [R, I] and [O, R], for all experts of a layer [E, R, I] and [E, O, R].
    """

    def __init__(
        self,
        layers: dict[str, Adaptable],
        *,
        head_name: str,
        spec: RunSpec,
        device: torch.device,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self._process_group = process_group
        self.layers = _chosen(layers, head_name, spec)
        self.scale = ALPHA / spec.rank
        self.parameters = FlatParameters(_shapes(self.layers, spec.rank), device=device)
        views = self.parameters.views(self.parameters.flat)
        for name in self.layers:
            _initialise(views[f"{name}.lora_A"], seed=spec.seed, name=name)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the base model computes with this run's matrices, and gradients reach its leaves."""
        leaves = self.parameters.leaves
        try:
            for name, layer in self.layers.items():
                layer.active, layer.scale = LowRank(leaves[f"{name}.lora_A"], leaves[f"{name}.lora_B"]), self.scale
            yield
        finally:
            for layer in self.layers.values():
                layer.active = None

    def complete(self, gradient: torch.Tensor) -> None:
        """Sum over the processes: each has a copy of all matrices and the gradient of its own examples."""
        self._process_group.sum_in_place(gradient)

    def live(self) -> Adapter:
        """The matrices themselves, not copies: the next step changes them."""
        return self._adapter(self.parameters.flat)

    def snapshot(self) -> Adapter:
        return self._adapter(self.parameters.flat.clone())

    def _adapter(self, flat: torch.Tensor) -> Adapter:
        views = self.parameters.views(flat)
        layers = {name: LowRank(views[f"{name}.lora_A"], views[f"{name}.lora_B"]) for name in self.layers}
        return Adapter(layers, self.scale)


def matrix_shapes(layers: Mapping[str, Adaptable], *, head_name: str, spec: RunSpec) -> dict[str, tuple[int, ...]]:
    """The shapes of all matrices of a run, by name."""
    return _shapes(_chosen(dict(layers), head_name, spec), spec.rank)


def _shapes(layers: Mapping[str, Adaptable], rank: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, layer in layers.items():
        shapes[f"{name}.lora_A"], shapes[f"{name}.lora_B"] = layer.matrix_shapes(rank)
    return shapes


def _chosen(layers: dict[str, Adaptable], head_name: str, spec: RunSpec) -> dict[str, Adaptable]:
    experts = {name for name, layer in layers.items() if isinstance(layer, ExpertProjection)}
    in_blocks = {name for name in layers if name != head_name and IN_A_BLOCK.search(f".{name}.")} - experts
    attention = {name for name in in_blocks if ATTENTION_LAYERS.search(name)}
    mlp = in_blocks - attention
    if spec.train_experts:
        mlp = (mlp - _routers(layers)) | experts
    asked = {
        "train_attn": (spec.train_attn, attention),
        "train_mlp": (spec.train_mlp, mlp),
        "train_unembed": (spec.train_unembed, {head_name} & layers.keys()),
    }
    chosen: set[str] = set()
    for flag, (is_asked, names) in asked.items():
        if is_asked and not names:
            raise BadRequest(
                f"{flag} is on, but this base model has no layers there that can be adapted: they are neither plain "
                f"linear layers nor experts with the interface of transformers. Create the run with {flag}=False."
            )
        chosen |= names if is_asked else set()
    return {name: layer for name, layer in layers.items() if name in chosen}


def _routers(layers: dict[str, Adaptable]) -> set[str]:
    """Linear layers that choose between the experts beside them: they have an output for each expert."""
    counts = {
        name.rsplit(".", 2)[0]: layer.experts for name, layer in layers.items() if isinstance(layer, ExpertProjection)
    }
    return {
        name
        for name, layer in layers.items()
        if isinstance(layer, AdaptableLinear)
        and any(
            name.startswith(f"{block}.") and _ROUTER.search(name[len(block) :]) and layer.out_features == count
            for block, count in counts.items()
        )
    }


def _initialise(down: torch.Tensor, *, seed: int, name: str) -> None:
    """Kaiming uniform with a = sqrt(5): within ±1/sqrt(I). The values of a layer depend only on seed and name."""
    if down.is_meta:
        return  # shapes only
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    bound = 1 / math.sqrt(down.shape[-1])
    down.copy_(torch.empty(down.shape).uniform_(-bound, bound, generator=generator))


class _AdaptedLinear(torch.autograd.Function):
    """Computes no gradient of the base weight. ``_Product`` computes the result: this only keeps what the backward pass
    needs, and returns a placeholder for the result, and the hidden states of the adapter.

    They are apart for activation checkpointing, which computes a layer again until all that it needs is there. The
    product of its last linear layer comes after that.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_NI: torch.Tensor,
        weight_OI: FrozenWeight,
        down_RI: torch.Tensor,
        up_OR: torch.Tensor,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden_NR = matmul(x_NI.to(down_RI.dtype), down_RI.T)
        ctx.quantised = weight_OI if isinstance(weight_OI, QuantisedWeight) else None
        plain_OI = None if isinstance(weight_OI, QuantisedWeight) else weight_OI
        ctx.save_for_backward(x_NI, plain_OI, down_RI, up_OR, hidden_NR)
        ctx.scale = scale
        ctx.mark_non_differentiable(hidden_NR)
        return x_NI.new_empty(()).expand(len(x_NI), len(up_OR)), hidden_NR

    @staticmethod
    def backward(ctx: Any, grad_NO: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_NI, plain_OI, down_RI, up_OR, hidden_NR = ctx.saved_tensors
        exact_NO = grad_NO.to(up_OR.dtype)
        grad_hidden_NR = matmul(exact_NO, up_OR).mul_(ctx.scale)
        grad_x_NI = None
        if ctx.needs_input_grad[0]:
            weight_OI = plain_OI if ctx.quantised is None else dense(ctx.quantised)
            grad_x_NI = matmul(grad_NO, weight_OI).to(down_RI.dtype).addmm_(grad_hidden_NR, down_RI).to(x_NI.dtype)
        grad_down_RI = grad_hidden_NR.T @ x_NI.to(down_RI.dtype)
        grad_up_OR = (exact_NO.T @ hidden_NR).mul_(ctx.scale)
        return grad_x_NI, None, grad_down_RI, grad_up_OR, None


class _Product(torch.autograd.Function):
    """Adds in place: needs no temporary of the output's size. The gradient goes to the placeholder."""

    @staticmethod
    def forward(
        _ctx: Any,
        _placeholder_NO: torch.Tensor,
        x_NI: torch.Tensor,
        weight_OI: FrozenWeight,
        bias_O: torch.Tensor | None,
        hidden_NR: torch.Tensor,
        up_OR: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        y_NO = linear(x_NI, dense(weight_OI), bias_O)
        if y_NO.dtype == up_OR.dtype:
            return y_NO.addmm_(hidden_NR, up_OR.T, alpha=scale)
        return torch.addmm(y_NO.to(up_OR.dtype), hidden_NR, up_OR.T, alpha=scale).to(y_NO.dtype)

    @staticmethod
    def backward(_ctx: Any, grad_NO: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return grad_NO, None, None, None, None, None, None


class _FrozenLinear(torch.autograd.Function):
    """A product with a weight that is not trained. The backward pass dequantises a quantised weight again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_OI: FrozenWeight, bias_O: torch.Tensor | None) -> torch.Tensor:
        ctx.weight = weight_OI
        return linear(x, dense(weight_OI), bias_O)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        grad_NI = matmul(grad.flatten(0, -2), dense(ctx.weight))
        return grad_NI.view(*grad.shape[:-1], -1), None, None


def _frozen_linear(x: torch.Tensor, weight_OI: FrozenWeight, bias_O: torch.Tensor | None) -> torch.Tensor:
    y: torch.Tensor = _FrozenLinear.apply(x, weight_OI, bias_O)  # type: ignore[no-untyped-call]  # as below
    return y


def _adapted_linear(
    x_NI: torch.Tensor,
    weight_OI: FrozenWeight,
    bias_O: torch.Tensor | None,
    down_RI: torch.Tensor,
    up_OR: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    placeholder_NO, hidden_NR = _AdaptedLinear.apply(  # type: ignore[no-untyped-call]  # torch has no types here
        x_NI, weight_OI, down_RI, up_OR, scale
    )
    y_NO: torch.Tensor = _Product.apply(  # type: ignore[no-untyped-call]  # as above
        placeholder_NO, x_NI.detach(), weight_OI, bias_O, hidden_NR, up_OR.detach(), scale
    )
    return y_NO
