"""The decoder: a Llama-like forward pass over a flat list of tokens, with attention given by the caller.

Shapes: N tokens of any number of sequences, H hidden, V vocabulary, Q query heads, K key heads, D head width.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  # the name everyone reads

from chockstone.sampling.fused.multi_lora import MultiLoraMatmul
from chockstone.sampling.fused.rotary import RotaryTable
from chockstone.sampling.fused.weights import ExpertBlock, FusedWeights, Norm


class Attention(Protocol):
    """Stores a layer's new keys and values, and attends. Rows of q and the answer: [N, Q * D]."""

    def attend(self, layer: int, q_NQD: torch.Tensor, k_NKD: torch.Tensor, v_NKD: torch.Tensor) -> torch.Tensor: ...


class Decoder:
    def __init__(self, weights: FusedWeights) -> None:
        self.weights = weights
        self.rotary = RotaryTable(weights.rotary, weights.embedding)
        make = _make_norm
        self._attention_norms = [make(layer.attention_norm) for layer in weights.layers]
        self._head_norms = [make(layer.head_norm) if layer.head_norm else None for layer in weights.layers]
        self._mlp_norms = [make(layer.mlp_norm) for layer in weights.layers]
        self._final_norm = make(weights.final_norm)

    def hidden(
        self,
        tokens_N: torch.Tensor,
        positions_N: torch.Tensor,
        matmul: MultiLoraMatmul,
        attention: Attention,
        *,
        order: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """The normed hidden states [N, H], which ``logits`` turns into logits.

        Rows are in the order of ``matmul``. If attention needs another order, ``order`` has the indices to it and
        back, and ``positions_N`` is in attention's order.
        """
        weights = self.weights
        queries, keys, width = weights.query_heads, weights.key_heads, weights.head_width
        rotated = queries + keys
        cos_N1D, sin_N1D = self.rotary.look_up(positions_N)
        x_NH = weights.embedding.index_select(0, tokens_N)
        product = 0
        for number, layer in enumerate(weights.layers):
            normed_NH = self._attention_norms[number](x_NH)
            qkv = matmul.product(product, normed_NH)
            if order is not None:
                qkv = qkv.index_select(0, order[0])
            qkv = qkv.contiguous().view(-1, rotated + keys, width)
            qk, v = qkv.split_with_sizes((rotated, keys), 1)  # fewer calls than slices, and so are the splits below
            if (head_norm := self._head_norms[number]) is not None:
                qk = head_norm(qk)
            qk = (qk * cos_N1D).addcmul_(torch.roll(qk, width // 2, -1), sin_N1D)
            q, k = qk.split_with_sizes((queries, keys), 1)
            mixed = attention.attend(number, q, k, v)
            if order is not None:
                mixed = mixed.index_select(0, order[1])
            x_NH = matmul.add_product(product + 1, mixed, x_NH)
            normed_NH = self._mlp_norms[number](x_NH)
            if isinstance(layer.mlp, ExpertBlock):
                x_NH = x_NH.add_(matmul.mix(layer.mlp, normed_NH))
            else:
                gate_up = matmul.product(product + 2, normed_NH)
                gate, up = gate_up.split_with_sizes((gate_up.shape[-1] // 2,) * 2, -1)
                x_NH = matmul.add_product(product + 3, weights.activation(gate).mul_(up), x_NH)
            product += len(layer.matrices)
        return self._final_norm(x_NH)

    def logits(self, hidden_NH: torch.Tensor, matmul: MultiLoraMatmul) -> torch.Tensor:
        return matmul.product(len(self.weights.matrices) - 1, hidden_NH).float().contiguous()


class _FusedNorm:
    """``torch.rms_norm``: one kernel on a GPU, and exact enough in half precision."""

    def __init__(self, norm: Norm) -> None:
        self._weight, self._epsilon = norm.weight, norm.epsilon
        self._shape = norm.weight.shape[-1:]
        self._is_plain = norm.weight.ndim == 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._is_plain:
            return F.rms_norm(x, self._shape, self._weight, self._epsilon)
        return F.rms_norm(x, self._shape, None, self._epsilon) * self._weight


class _QuickNorm:
    """The same in four cheap calls, for float32 on a CPU, where ``rms_norm`` is six.

    ``x / sqrt(mean(x²) + ε) = x / hypot(|x|, sqrt(ε n)) * sqrt(n)``, the last factor kept in the weight.
    """

    def __init__(self, norm: Norm) -> None:
        width = norm.weight.shape[-1]
        self._weight = norm.weight * width**0.5
        self._floor = torch.tensor((norm.epsilon * width) ** 0.5)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        length: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x / length.hypot_(self._floor)).mul_(self._weight)


def _make_norm(norm: Norm) -> _FusedNorm | _QuickNorm:
    is_quick = norm.weight.device.type == "cpu" and norm.weight.dtype == torch.float32
    return _QuickNorm(norm) if is_quick else _FusedNorm(norm)
