"""The shape of a small model: from a wanted number of parameters to widths and depth.

Qwen3 ties its output to its embedding and norms queries and keys; Llama does neither. Both have half as
many key heads as query heads, as their large siblings have fewer. Numbers only; nothing is made here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

Architecture = Literal["qwen3", "llama"]

_TOLERANCE: Final = 0.1
_WIDTHS: Final = (*range(64, 256, 64), *range(256, 1537, 128))  # an even number of heads each
_DEPTHS: Final = range(2, 33)
_MLP_RATIO: Final = 3.0
_ASPECT: Final = 48.0  # width over depth


class NoSuchShape(ValueError):
    """No model of this architecture, size and vocabulary exists."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int

    @property
    def head_size(self) -> int:
        return 32 if self.hidden_size < 256 else 64

    @property
    def heads(self) -> int:
        return self.hidden_size // self.head_size

    @property
    def key_heads(self) -> int:
        return self.heads // 2

    @property
    def is_tied(self) -> bool:
        return self.architecture == "qwen3"

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for _, shape in self.tensors())

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of each, as Hugging Face names them."""
        hidden, mlp = self.hidden_size, self.intermediate_size
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        yield "model.embed_tokens.weight", (self.vocab_size, hidden)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            yield f"{prefix}.input_layernorm.weight", (hidden,)
            yield f"{prefix}.self_attn.q_proj.weight", (queries, hidden)
            yield f"{prefix}.self_attn.k_proj.weight", (keys, hidden)
            yield f"{prefix}.self_attn.v_proj.weight", (keys, hidden)
            yield f"{prefix}.self_attn.o_proj.weight", (hidden, queries)
            if self.architecture == "qwen3":
                yield f"{prefix}.self_attn.q_norm.weight", (self.head_size,)
                yield f"{prefix}.self_attn.k_norm.weight", (self.head_size,)
            yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
            yield f"{prefix}.mlp.gate_proj.weight", (mlp, hidden)
            yield f"{prefix}.mlp.up_proj.weight", (mlp, hidden)
            yield f"{prefix}.mlp.down_proj.weight", (hidden, mlp)
        yield "model.norm.weight", (hidden,)
        if not self.is_tied:
            yield "lm_head.weight", (self.vocab_size, hidden)


def choose_vocab_size(parameters: int) -> int:
    """What leaves most of a model of this size to its layers."""
    for limit, vocab_size in ((5_000_000, 512), (50_000_000, 2048), (200_000_000, 8192)):
        if parameters < limit:
            return vocab_size
    return 16_384


def choose_shape(architecture: Architecture, *, parameters: int, vocab_size: int) -> ModelShape:
    """The best proportioned shape within a tenth of ``parameters``. Raises NoSuchShape."""
    shapes = [
        shape
        for hidden_size in _WIDTHS
        for layers in _DEPTHS
        if (shape := _fit(architecture, parameters, vocab_size, hidden_size, layers)) is not None
    ]
    if not shapes:
        raise NoSuchShape(
            f"no {architecture} model has about {parameters:,} parameters and a vocabulary of {vocab_size:,}; "
            f"ask for another size, or for a vocabulary of about {choose_vocab_size(parameters):,}"
        )
    return min(shapes, key=_distortion)


def _fit(
    architecture: Architecture, parameters: int, vocab_size: int, hidden_size: int, layers: int
) -> ModelShape | None:
    """With the MLP as wide as makes up the number; None if that is out of proportion."""
    bare = ModelShape(architecture, vocab_size, hidden_size, 0, layers).parameters
    intermediate_size = round((parameters - bare) / (3 * hidden_size * layers) / 8) * 8
    if not hidden_size <= intermediate_size <= 6 * hidden_size:
        return None
    shape = ModelShape(architecture, vocab_size, hidden_size, intermediate_size, layers)
    return shape if abs(shape.parameters - parameters) <= _TOLERANCE * parameters else None


def _distortion(shape: ModelShape) -> float:
    mlp = math.log(shape.intermediate_size / shape.hidden_size / _MLP_RATIO)
    aspect = math.log(shape.hidden_size / shape.layers / _ASPECT)
    return abs(mlp) + abs(aspect) / 2
