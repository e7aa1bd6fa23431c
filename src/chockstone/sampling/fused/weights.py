"""Fused weights: those of a Llama-like model, recognised by its modules and joined for few large products.

Query, key and value matrices become views of one tensor, gate and up likewise: no memory is added, and
the model's own modules, parameters and state_dict work as before. Blocks of routed experts compute by themselves.

Shapes: H hidden, D head width, I intermediate.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812  # the name everyone reads
from torch import nn
from transformers import PreTrainedModel

from chockstone.sampling.experts.modules import AdaptableExperts, expert_projections, make_experts_adaptable
from chockstone.sampling.products.packing import PackedMatrices
from chockstone.sampling.quantised.linear import QuantisedLinear, frozen_weight
from chockstone.sampling.quantised.weight import FrozenWeight, QuantisedWeight

_ATTENTION: Final = {"q_proj", "k_proj", "v_proj", "o_proj"}
_NORMS: Final = {"q_norm", "k_norm"}
_LAYER: Final = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_MLP: Final = {"gate_proj", "up_proj", "down_proj"}
_FIXED_ROPE: Final = {"default", "linear", "llama3", "yarn"}  # angles that depend on the position alone

Activation = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Matrix:
    """One product ``x @ weight.T + bias``; ``parts`` names the modules it stands for, with their output widths."""

    weight: FrozenWeight  # [out, in]
    bias: torch.Tensor | None
    parts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Norm:
    weight: torch.Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class ExpertBlock:
    """A router with its experts, and nothing else that an adapter could change."""

    module: nn.Module
    experts: AdaptableExperts
    name: str  # of the experts


@dataclass(frozen=True, slots=True)
class FusedLayer:
    attention_norm: Norm
    qkv: Matrix
    head_norm: Norm | None  # weight [query heads + key heads, D]
    output: Matrix
    mlp_norm: Norm
    mlp: tuple[Matrix, Matrix] | ExpertBlock  # gate with up, and down; or routed experts

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return self.qkv, self.output, *(self.mlp if isinstance(self.mlp, tuple) else ())

    @property
    def expert_names(self) -> tuple[str, ...]:
        """Of the weights of its routed experts."""
        if isinstance(self.mlp, tuple):
            return ()
        return tuple(expert_projections({self.mlp.name: self.mlp.experts}))


@dataclass(frozen=True, slots=True)
class FusedWeights:
    embedding: torch.Tensor
    layers: tuple[FusedLayer, ...]
    matrices: tuple[Matrix, ...]  # by product number: those of each layer, then the head
    final_norm: Norm
    rotary: nn.Module
    activation: Activation
    query_heads: int
    key_heads: int
    head_width: int
    scaling: float
    experts_per_token: int
    packed: PackedMatrices

    @property
    def size(self) -> int:
        """Number of weights that every token is multiplied with."""
        expert_sizes = sum(
            each.in_features * each.out_features
            for layer in self.layers
            if isinstance(layer.mlp, ExpertBlock)
            for each in (layer.mlp.experts.first, layer.mlp.experts.last)
        )
        return sum(matrix.weight.numel() for matrix in self.matrices) + expert_sizes * self.experts_per_token


def fuse_weights(model: PreTrainedModel, *, max_context: int, packable_bytes: int = 0) -> FusedWeights | None:
    """None, with nothing changed, if the modules are not the known ones. The caller must compare the numbers.

    ``packable_bytes`` is the memory that packed copies of the matrices may take.
    """
    if not _is_known(model, max_context=max_context):
        return None
    names = {id(module): name for name, module in model.named_modules()}
    body: Any = model.model  # Any: modules are found by name, whatever their class
    attention = body.layers[0].self_attn
    width = int(attention.head_dim)
    layers = []
    for layer in body.layers:
        attention = layer.self_attn
        layers.append(
            FusedLayer(
                attention_norm=_norm(layer.input_layernorm),
                qkv=_fuse([attention.q_proj, attention.k_proj, attention.v_proj], names),
                head_norm=_head_norm(attention, width) if hasattr(attention, "q_norm") else None,
                output=_fuse([attention.o_proj], names),
                mlp_norm=_norm(layer.post_attention_layernorm),
                mlp=_fuse_mlp(layer.mlp, names),
            )
        )
    activation = next((layer.mlp.act_fn for layer in body.layers if hasattr(layer.mlp, "act_fn")), F.silu)
    matrices = [*(matrix for one in layers for matrix in one.matrices), _fuse([model.lm_head], names)]
    return FusedWeights(
        embedding=body.embed_tokens.weight.detach(),
        layers=tuple(layers),
        matrices=tuple(matrices),
        final_norm=_norm(body.norm),
        rotary=body.rotary_emb,
        activation=F.silu if type(activation).__name__ in {"SiLU", "SiLUActivation"} else activation,
        query_heads=layers[0].qkv.parts[0][1] // width,
        key_heads=layers[0].qkv.parts[1][1] // width,
        head_width=width,
        scaling=float(attention.scaling),
        experts_per_token=int(getattr(model.config, "num_experts_per_tok", None) or 1),
        packed=PackedMatrices([matrix.weight for matrix in matrices], limit_bytes=packable_bytes),
    )


def _fuse_mlp(mlp: Any, names: dict[int, str]) -> tuple[Matrix, Matrix] | ExpertBlock:  # Any: as in ``fuse_weights``
    if not _is_expert_block(mlp):
        return _fuse([mlp.gate_proj, mlp.up_proj], names), _fuse([mlp.down_proj], names)
    (experts,) = make_experts_adaptable(mlp).values()
    return ExpertBlock(mlp, experts, names[id(experts)])


def _is_expert_block(mlp: nn.Module) -> bool:
    """A linear layer in it would need the additions of an adapter."""
    return len(make_experts_adaptable(mlp)) == 1 and not any(isinstance(each, nn.Linear) for each in mlp.modules())


def _is_known(model: PreTrainedModel, *, max_context: int) -> bool:
    body: Any = getattr(model, "model", None)  # Any: asked only what any object can be asked
    if body is None or _children(model) != {"model", "lm_head"}:
        return False
    if _children(body) != {"embed_tokens", "layers", "norm", "rotary_emb"} or not len(body.layers):
        return False
    for layer in body.layers:
        if _children(layer) != _LAYER:
            return False
        if _children(layer.mlp) - {"act_fn"} != _MLP and not _is_expert_block(layer.mlp):
            return False
        if not (_has_weight(layer.input_layernorm) and _has_weight(layer.post_attention_layernorm)):
            return False
        attention = layer.self_attn
        if _children(attention) not in (_ATTENTION, _ATTENTION | _NORMS):
            return False
        if next(attention.parameters(recurse=False), None) is not None:
            return False
        if _children(attention) > _ATTENTION and attention.q_norm.weight.shape != (attention.head_dim,):
            return False
    linears = [module for layer in body.layers for module in (*layer.self_attn.children(), *layer.mlp.children())]
    if any(hasattr(module, "in_features") and not _is_plain_linear(module) for module in linears):
        return False
    if not _has_weight(body.norm):
        return False
    if len({_precision(module) for module in linears if hasattr(module, "in_features")}) > 1:
        return False  # weights of several precisions cannot be joined
    return _is_plain_linear(model.lm_head) and _has_plain_attention(model, max_context=max_context)


def _has_plain_attention(model: PreTrainedModel, *, max_context: int) -> bool:
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in _FIXED_ROPE:
        return False
    if getattr(config, "attn_logit_softcapping", None) or getattr(config, "final_logit_softcapping", None):
        return False
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or (["sliding_attention"] if window else []))
    if "sliding_attention" in kinds:
        return window is not None and max_context <= window
    return kinds <= {"full_attention"}


def _has_weight(norm: nn.Module) -> bool:
    """Those of OLMo have none."""
    return isinstance(getattr(norm, "weight", None), torch.Tensor)


def _is_plain_linear(module: nn.Module) -> bool:
    if isinstance(module, QuantisedLinear):
        return True
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.ndim == 2 and weight.is_floating_point()


def _precision(module: nn.Module) -> str:
    return module.precision if isinstance(module, QuantisedLinear) else "full"


def _children(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


def _norm(module: Any) -> Norm:  # Any: RMSNorm modules share no class
    epsilon = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None) or 1e-6
    return Norm(module.weight.detach(), float(epsilon))


def _head_norm(attention: Any, width: int) -> Norm:  # Any: attention modules share no class
    queries, keys = (frozen_weight(module).shape[0] // width for module in (attention.q_proj, attention.k_proj))
    query, key = _norm(attention.q_norm), _norm(attention.k_norm)
    weight = torch.cat((query.weight.expand(queries, width), key.weight.expand(keys, width)))
    return Norm(weight, query.epsilon)


@torch.no_grad()
def _fuse(modules: Many[Any], names: dict[int, str]) -> Matrix:  # Any: a linear, or what training wrapped one in
    weights = [frozen_weight(module) for module in modules]
    biases = [module.bias for module in modules]
    parts = tuple((names[id(module)], int(weight.shape[0])) for module, weight in zip(modules, weights, strict=True))
    bias = None
    if len(modules) == 1:
        bias = None if biases[0] is None else biases[0].detach()
    elif any(one is not None for one in biases):
        filled = [
            one.detach() if one is not None else torch.zeros(w.shape[0], dtype=w.dtype, device=w.device)
            for one, w in zip(biases, weights, strict=True)
        ]
        bias = torch.cat(filled)
    return Matrix(_join(weights), bias, parts)


def _join(weights: Many[FrozenWeight]) -> FrozenWeight:
    """Weights of one precision as one. Quantised rows stand for themselves, so their codes can be concatenated."""
    quantised = [weight for weight in weights if isinstance(weight, QuantisedWeight)]
    if quantised:
        codes = _side_by_side([weight.codes for weight in quantised])
        scales = _side_by_side([weight.scales for weight in quantised])
        return QuantisedWeight(codes, scales, quantised[0].width, quantised[0].dtype)
    return _side_by_side([weight for weight in weights if isinstance(weight, torch.Tensor)])


def _side_by_side(weights: Many[torch.Tensor]) -> torch.Tensor:
    """One tensor with all rows, of which the parameters become views. A second call returns the same tensor."""
    first = weights[0]
    if len(weights) == 1:
        return first.detach()
    rows = sum(len(weight) for weight in weights)
    offset = first.storage_offset()
    are_views = True
    for weight in weights:
        are_views &= weight.data_ptr() == first.data_ptr() + (offset - first.storage_offset()) * first.element_size()
        are_views &= weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        offset += weight.numel()
    if are_views:
        return torch.as_strided(first.detach(), (rows, *first.shape[1:]), first.stride(), first.storage_offset())
    fused = torch.cat([weight.detach() for weight in weights])
    start = 0
    for weight in weights:
        weight.data = fused[start : start + len(weight)]
        start += len(weight)
    return fused
