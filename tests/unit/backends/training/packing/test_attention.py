"""Packed attention: each sequence as alone, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sliding_window_causal_mask_function

from chockstone.backends.training.packing.attention import NotPackable, attend, attending, make_mask
from chockstone.backends.training.packing.layout import PackedBatch, pack

PROMPT = list(range(100, 120))
SEQUENCES = ([*PROMPT, 1], [9, 8], [*PROMPT, 2, 3], [*PROMPT], list(range(100, 190)), [*PROMPT, *range(60)])


class _Attention(nn.Module):
    num_key_value_groups = 2
    is_causal = True


def make_batch() -> PackedBatch:
    return pack([np.array([tokens, tokens]).T for tokens in SEQUENCES], torch.device("cpu"))


def draw(batch: PackedBatch, heads: int, size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(1, len(batch.tokens_F), heads, size, generator=generator).transpose(1, 2)
    return states.requires_grad_()


@pytest.mark.parametrize("window", [None, 7])
def test_each_sequence_attends_as_alone(window: int | None) -> None:
    batch = make_batch()
    assert batch.rows_R is not None
    states = [draw(batch, 4, 8, 1), draw(batch, 2, 8, 2), draw(batch, 2, 6, 3)]
    weights = torch.randn(len(batch.tokens_F), 4, 6, generator=torch.Generator().manual_seed(4))
    mask = None
    if window is not None:
        mask = torch.ones(batch.longest, batch.longest, dtype=torch.bool).tril().triu(1 - window)[None, None]

    with attending(batch):
        packed, _ = attend(_Attention(), *states, mask)
        found = torch.autograd.grad((packed[0] * weights).sum(), states)
    expected = torch.zeros_like(packed[0])
    seen: set[int] = set()
    total = torch.zeros(())
    for rows in batch.rows_R.split([len(tokens) for tokens in SEQUENCES]):
        corner = None if mask is None else mask[..., : len(rows), : len(rows)]
        alone, _ = sdpa_attention_forward(_Attention(), *(each[:, :, rows] for each in states), corner)
        expected[rows] = alone[0].detach()
        new = [place for place, row in enumerate(rows.tolist()) if row not in seen]  # a shared position counts once
        seen.update(rows.tolist())
        total = total + (alone[0][new] * weights[rows[new]]).sum()

    torch.testing.assert_close(packed[0], expected, rtol=1e-5, atol=1e-6)
    for one, other in zip(found, torch.autograd.grad(total, states), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_the_mask_is_that_of_the_longest_sequence_where_a_window_is_shorter() -> None:
    def mask(**named: Any) -> torch.Tensor | None:
        return make_mask(
            batch_size=1, q_length=150, kv_length=150, mask_function=sliding_window_causal_mask_function(30), **named
        )

    with attending(make_batch()):
        assert mask(local_size=91) is None
        windowed = mask(local_size=30)
        assert mask(use_vmap=True) is not None  # a mask of the model's own

    assert windowed is not None
    assert torch.equal(windowed[0, 0], torch.ones(90, 90, dtype=torch.bool).tril().triu(-29))


def test_without_a_packed_batch_nothing_changes() -> None:
    states = [torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)]

    assert torch.equal(attend(_Attention(), *states, None)[0], sdpa_attention_forward(_Attention(), *states, None)[0])
    assert make_mask(batch_size=1, q_length=5, kv_length=5, local_size=3) is not None


def test_what_is_not_defined_for_packed_batches_is_refused() -> None:
    batch = make_batch()
    states = draw(batch, 2, 8, 1)

    with attending(batch), pytest.raises(NotPackable):
        attend(_Attention(), states, states, states, None, position_bias=torch.zeros(1))
    with attending(batch), pytest.raises(NotPackable):
        attend(_Attention(), states[:, :, :5], states, states, None)


def test_the_batch_under_way_ends_with_its_block() -> None:
    states = torch.randn(1, 2, 5, 8)

    with pytest.raises(KeyError), attending(make_batch()):
        raise KeyError

    assert attend(_Attention(), states, states[:, :1], states[:, :1], None)[0].shape == (1, 5, 2, 8)
