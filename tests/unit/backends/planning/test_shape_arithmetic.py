"""Training code runs on tensors without numbers."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from chockstone.backends.planning.live_bytes import LiveBytes
from chockstone.backends.planning.shape_arithmetic import ShapeArithmetic

META = torch.device("meta")


def test_numbers_are_invented_and_shapes_are_not() -> None:
    tensor = torch.zeros(3, 4, device=META)

    with ShapeArithmetic():
        assert bool(tensor.any())
        assert float(tensor.sum()) == 1.0
        assert tensor.cpu().shape == (3, 4)
        assert bool(torch.zeros(1).any()) is False, "tensors with numbers keep them"


def test_attention_keeps_no_scores() -> None:
    time, heads, size = 1000, 4, 8
    query, key, value = (torch.zeros(1, heads, time, size, device=META, requires_grad=True) for _ in range(3))

    with LiveBytes(META) as live, ShapeArithmetic():
        out = scaled_dot_product_attention(query, key, value, is_causal=True)
        torch.autograd.backward(out, torch.ones_like(out))

    assert out.shape == query.shape
    assert live.peak < 10 * query.nbytes < time * time * 4
