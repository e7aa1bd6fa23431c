# tensors carry their axes
"""Routed experts: the fused weights of a mixture of experts, with low-rank additions for each expert.

transformers has one module for all experts of a layer. Its first weight makes the hidden values of every expert (gate
and up), its last weight (down) their outputs. The interface of those modules is the same in all architectures, so one
class adapts them all. The rows of a batch are sorted by expert, and each expert multiplies its own rows.

Training and sampling both compute with this class. Without an active adapter the module computes as transformers does.

Shapes: N tokens, K experts of each token, S = N * K routed rows sorted by expert, E experts, I in, O out, R rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast

import torch
from torch import nn
from torch.nn import functional

from chockstone.sampling.adapter import LowRank

_INTERFACE: Final = ("num_experts", "has_gate", "has_bias", "is_transposed", "has_post_expert_norm", "_apply_gate")
_ALIGNED: Final = 8  # elements: the grouped products of CUDA want rows of whole 16 bytes


@dataclass(slots=True, eq=False)
class ExpertProjection:
    """The first or the last weight of all experts of a module; ``active`` is what an adapter adds to it."""

    experts: int
    in_features: int
    out_features: int
    active: LowRank | None = None  # [E, R, I] and [E, O, R]
    scale: float = 0.0

    def matrix_shapes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of ``lora_A`` and ``lora_B``."""
        return (self.experts, rank, self.in_features), (self.experts, self.out_features, rank)


class AdaptableExperts(nn.Module):
    """Comes before the class of an experts module. Both projections are adapted, or none."""

    first: ExpertProjection
    last: ExpertProjection
    records: bool
    chosen: list[torch.Tensor]  # [N, K] of each call that was recorded

    def forward(self, *values: Any, **named: Any) -> Any:  # Any: as in transformers, where names differ
        if self.records:
            _, chosen_NK, *_ = (*values, *named.values())
            self.chosen.append(chosen_NK)
        if self.first.active is None or self.last.active is None:
            return super().forward(*values, **named)
        return self._adapted(*values, *named.values())

    def _adapted(self, x_NI: torch.Tensor, experts_NK: torch.Tensor, weights_NK: torch.Tensor) -> torch.Tensor:
        module: Any = self  # Any: the attributes of the interface of transformers
        routes = ExpertRoutes(experts_NK, experts=self.first.experts)
        name = _first_name(module)
        hidden_SO = _project(x_NI, module, name, self.first, routes, is_gathered=True)
        hidden_SI = module._apply_gate(hidden_SO) if module.has_gate else module.act_fn(hidden_SO)
        y_SO = _project(hidden_SI, module, "down_proj", self.last, routes, is_gathered=False)
        if module.has_post_expert_norm:
            y_SO = module.post_expert_norm(y_SO)
        y_NKO = y_SO[routes.places_S].view(*experts_NK.shape, -1)
        return (y_NKO * weights_NK[..., None]).sum(dim=1).to(x_NI.dtype)


class ExpertRoutes:
    """Which rows each expert gets: the order in which rows are sorted by expert, and where each expert's rows are."""

    def __init__(self, experts_NK: torch.Tensor, *, experts: int) -> None:
        self._of_each_token = experts_NK.shape[1]
        self.experts_S, order_S = torch.sort(experts_NK.reshape(-1), stable=True)
        self.counts_E = torch.bincount(self.experts_S, minlength=experts)
        self.places_S = torch.empty_like(order_S)  # where each row went
        self.places_S[order_S] = torch.arange(len(order_S), device=experts_NK.device)
        self.tokens_S = order_S // self._of_each_token
        self.offsets_E = self.counts_E.cumsum(0, dtype=torch.int32)  # the end of each expert's rows

    @cached_property
    def groups(self) -> list[tuple[int, slice]]:
        """The experts that have rows, and their rows. On CUDA this waits for the device."""
        groups, start = [], 0
        for expert, count in enumerate(self.counts_E.tolist()):
            if count:
                groups.append((expert, slice(start, start + count)))
            start += count
        return groups

    def sum_by_token(self, rows_SI: torch.Tensor) -> torch.Tensor:
        """[N, I]. Adds in a fixed order, also on CUDA."""
        return rows_SI[self.places_S].view(-1, self._of_each_token, rows_SI.shape[1]).sum(dim=1)


def make_experts_adaptable(model: nn.Module) -> dict[str, AdaptableExperts]:
    """Let the experts modules of ``model`` take adapters, in place; returns them by name."""
    found: dict[str, AdaptableExperts] = {}
    for name, module in model.named_modules():
        if not isinstance(module, AdaptableExperts):
            if not _is_experts(module):
                continue
            kind = type(module)
            module.__class__ = type(kind.__name__, (AdaptableExperts, kind), {"__module__": kind.__module__})
            adaptable = cast("AdaptableExperts", module)
            adaptable.first = _projection(module, _first_name(module))
            adaptable.last = _projection(module, "down_proj")
            adaptable.records, adaptable.chosen = False, []
        found[name] = cast("AdaptableExperts", module)
    return found


def expert_projections(experts: dict[str, AdaptableExperts]) -> dict[str, ExpertProjection]:
    """By the names of their weights."""
    found: dict[str, ExpertProjection] = {}
    for name, module in experts.items():
        found[f"{name}.{_first_name(module)}"] = module.first
        found[f"{name}.down_proj"] = module.last
    return found


def _is_experts(module: nn.Module) -> bool:
    if not all(hasattr(module, attribute) for attribute in _INTERFACE):
        return False
    weights = (getattr(module, name, None) for name in (_first_name(module), "down_proj"))
    return all(isinstance(weight, nn.Parameter) and weight.dim() == 3 for weight in weights)


def _first_name(module: Any) -> str:  # Any: as above
    return "gate_up_proj" if module.has_gate else "up_proj"


def _projection(module: Any, name: str) -> ExpertProjection:  # Any: as above
    experts, rows, columns = getattr(module, name).shape
    if module.is_transposed:
        rows, columns = columns, rows
    return ExpertProjection(experts, in_features=columns, out_features=rows)


def _project(
    x: torch.Tensor,
    module: Any,  # Any: as above
    name: str,
    projection: ExpertProjection,
    routes: ExpertRoutes,
    *,
    is_gathered: bool,
) -> torch.Tensor:
    assert projection.active is not None
    weight = getattr(module, name)
    bias_EO = getattr(module, f"{name}_bias") if module.has_bias else None
    y_SO: torch.Tensor = _AdaptedProjection.apply(  # type: ignore[no-untyped-call]  # torch has no types here
        x,
        weight if module.is_transposed else weight.transpose(1, 2),
        bias_EO,
        projection.active.down,
        projection.active.up,
        projection.scale,
        routes,
        is_gathered,
    )
    return y_SO


class _AdaptedProjection(torch.autograd.Function):
    """Computes no gradient of the base weight. Keeps its input once for each token, not for each of its experts."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,  # [N, I], or [S, I] if it is not gathered here
        weight_EIO: torch.Tensor,
        bias_EO: torch.Tensor | None,
        down_ERI: torch.Tensor,
        up_EOR: torch.Tensor,
        scale: float,
        routes: ExpertRoutes,
        is_gathered: bool,
    ) -> torch.Tensor:
        x_SI = x[routes.tokens_S] if is_gathered else x
        y_SO = _multiply(x_SI, weight_EIO, routes)
        if bias_EO is not None:
            y_SO += bias_EO[routes.experts_S]
        hidden_SR = _multiply(x_SI.to(down_ERI.dtype), down_ERI.transpose(1, 2), routes)
        ctx.save_for_backward(x, weight_EIO, down_ERI, up_EOR, hidden_SR)
        ctx.scale, ctx.routes, ctx.is_gathered = scale, routes, is_gathered
        exact_SO = y_SO.to(up_EOR.dtype)
        return _add_product(exact_SO, hidden_SR, up_EOR.transpose(1, 2), routes, scale).to(y_SO.dtype)

    @staticmethod
    def backward(ctx: Any, grad_SO: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight_EIO, down_ERI, up_EOR, hidden_SR = ctx.saved_tensors
        routes: ExpertRoutes = ctx.routes
        exact_SO = grad_SO.to(up_EOR.dtype)
        grad_hidden_SR = _multiply(exact_SO, up_EOR, routes).mul_(ctx.scale)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_SI = _multiply(grad_SO, weight_EIO.transpose(1, 2), routes).to(down_ERI.dtype)
            grad_SI = _add_product(grad_SI, grad_hidden_SR, down_ERI, routes, 1.0)
            grad_x = (routes.sum_by_token(grad_SI) if ctx.is_gathered else grad_SI).to(x.dtype)
        x_SI = (x[routes.tokens_S] if ctx.is_gathered else x).to(down_ERI.dtype)
        grad_down_ERI = _outer(grad_hidden_SR, x_SI, routes)
        grad_up_EOR = _outer(exact_SO, hidden_SR, routes).mul_(ctx.scale)
        return grad_x, None, None, grad_down_ERI, grad_up_EOR, None, None, None


def _is_grouped(*factors: torch.Tensor) -> bool:
    """Whether the device has one product for all experts. On the CPU that is a loop over all of them, so ours is not
    slower, and it leaves out experts without rows."""
    return all(factor.is_cuda and not any(extent % _ALIGNED for extent in factor.shape[1:]) for factor in factors)


def _multiply(x_SI: torch.Tensor, weight_EIO: torch.Tensor, routes: ExpertRoutes) -> torch.Tensor:
    """[S, O]: each row by the weight of its expert."""
    if _is_grouped(x_SI, weight_EIO):
        return functional.grouped_mm(x_SI, weight_EIO, offs=routes.offsets_E)
    y_SO = x_SI.new_empty(len(x_SI), weight_EIO.shape[2])
    for expert, rows in routes.groups:
        torch.mm(x_SI[rows], weight_EIO[expert], out=y_SO[rows])
    return y_SO


def _add_product(
    y_SO: torch.Tensor, x_SI: torch.Tensor, weight_EIO: torch.Tensor, routes: ExpertRoutes, scale: float
) -> torch.Tensor:
    """``_multiply``, scaled, added to ``y_SO`` in place."""
    if _is_grouped(x_SI, weight_EIO):
        return y_SO.add_(functional.grouped_mm(x_SI, weight_EIO, offs=routes.offsets_E), alpha=scale)
    for expert, rows in routes.groups:
        y_SO[rows].addmm_(x_SI[rows], weight_EIO[expert], alpha=scale)
    return y_SO


def _outer(a_SO: torch.Tensor, b_SI: torch.Tensor, routes: ExpertRoutes) -> torch.Tensor:
    """[E, O, I]: the sum of products of the rows of each expert; zero for an expert without rows."""
    if _is_grouped(a_SO, b_SI):
        return functional.grouped_mm(a_SO.t(), b_SI, offs=routes.offsets_E)
    products_EOI = a_SO.new_zeros(len(routes.counts_E), a_SO.shape[1], b_SI.shape[1])
    for expert, rows in routes.groups:
        torch.mm(a_SO[rows].t(), b_SI[rows], out=products_EOI[expert])
    return products_EOI
