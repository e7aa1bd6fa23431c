# tensors carry their axes
"""Attention of packed batches, behind the attention interface of transformers.

The functions that transformers calls "sdpa" are replaced in this process. Without a packed batch they are the original
ones. With one, attention copies its inputs to blocks of whole sequences, calls the original function for each block,
and copies the results back. So masks, grouped heads and scaling are those of the model.

A single thread computes. On a GPU, autograd runs recomputed layers in a thread of its own, so the batch under way is a
plain variable, not one of the thread or of the context.

Shapes: H heads, E their size, B sequences of a block, T time; F and P as in ``layout.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from chockstone.backends.training.packing.layout import PackedBatch

NAME = "sdpa"
_under_way: PackedBatch | None = None


class NotPackable(Exception):
    """The model asks something of attention that is not defined for packed batches."""


@contextmanager
def attending(batch: PackedBatch | None) -> Iterator[None]:
    """Inside, models compute with this packed batch; None: with ordinary batches. Surround backward passes, too: they
    may compute layers again."""
    global _under_way  # noqa: PLW0603  # the interface of transformers has no other way to pass it to all models
    before, _under_way = _under_way, batch
    try:
        yield
    finally:
        _under_way = before


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **named: Any,  # Any: as the models pass them
) -> tuple[torch.Tensor, None]:
    """[1, F, H, E] from [1, H, F, E]. ``attention_mask`` is that of the longest sequence; None: it is just causal."""
    batch = _under_way
    if batch is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **named)
    if named.get("position_bias") is not None or query.shape[2] != len(batch.tokens_F):
        raise NotPackable
    queries, keys, values = (_split(states, batch) for states in (query, key, value))
    results = []
    for block, q_BHTE, k_BHTE, v_BHTE in zip(batch.blocks, queries, keys, values, strict=True):
        mask = None if attention_mask is None else attention_mask[..., : block.width, : block.width]
        out_BTHE, _ = sdpa_attention_forward(module, q_BHTE, k_BHTE, v_BHTE, mask, **named)
        results.append(out_BTHE.flatten(2).flatten(0, 1))
    out_PX = results[0] if len(results) == 1 else torch.cat(results)
    if batch.sources_P is not None:
        out_PX = _Collected.apply(out_PX, batch)  # type: ignore[no-untyped-call]  # torch has no types here
    return out_PX.view(1, len(batch.tokens_F), query.shape[1], -1), None


def make_mask(**named: Any) -> torch.Tensor | None:  # Any: as the models pass them
    """The mask of the longest sequence. Those of the others are its corners. None: attention is just causal."""
    batch = _under_way
    if batch is None:
        return sdpa_mask(**named)
    size = named.get("local_size")
    if not named.get("use_vmap") and (size is None or batch.longest < size):
        return None
    return sdpa_mask(**named | {"q_length": batch.longest, "kv_length": batch.longest, "allow_is_causal_skip": False})


def _split(states_1HFE: torch.Tensor, batch: PackedBatch) -> list[torch.Tensor]:
    """[B, H, T, E] for each block."""
    _, heads, _, size = states_1HFE.shape
    states_FX = states_1HFE[0].transpose(0, 1).flatten(1)
    if batch.sources_P is not None:
        states_FX = _Spread.apply(states_FX, batch)  # type: ignore[no-untyped-call]  # torch has no types here
    pieces = torch.split(states_FX, [block.positions for block in batch.blocks])
    return [
        piece.view(block.sequences, block.width, heads, size).transpose(1, 2)
        for block, piece in zip(batch.blocks, pieces, strict=True)
    ]


class _Spread(torch.autograd.Function):
    """From flat positions to blocks. Backward, the copies of a prefix are summed in a fixed order."""

    @staticmethod
    def forward(ctx: Any, states_FX: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
        ctx.batch = batch
        assert batch.sources_P is not None
        return states_FX.index_select(0, batch.sources_P)

    @staticmethod
    def backward(ctx: Any, grad_PX: torch.Tensor) -> tuple[torch.Tensor, None]:
        batch: PackedBatch = ctx.batch
        grad_FX = grad_PX.index_select(0, batch.places_F)
        for prefix in batch.prefixes:
            block = prefix.block
            copies_BTX = grad_PX[block.start : block.start + block.positions].view(block.sequences, block.width, -1)
            copies_BTX = copies_BTX[prefix.first : prefix.last, : prefix.length]
            grad_FX[prefix.flat_start : prefix.flat_start + prefix.length] += copies_BTX.sum(dim=0)
        return grad_FX, None


class _Collected(torch.autograd.Function):
    """From blocks to flat positions: the first copy of each. No other copy gets a gradient."""

    @staticmethod
    def forward(ctx: Any, states_PX: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
        ctx.batch = batch
        return states_PX.index_select(0, batch.places_F)

    @staticmethod
    def backward(ctx: Any, grad_FX: torch.Tensor) -> tuple[torch.Tensor, None]:
        batch: PackedBatch = ctx.batch
        assert batch.sources_P is not None
        grad_PX = grad_FX.index_select(0, batch.sources_P)
        return (grad_PX.masked_fill_(batch.is_copy_P, 0.0) if batch.has_copies else grad_PX), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, make_mask)
