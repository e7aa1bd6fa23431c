"""Packed matrices: which are packed, and that decoding with them gives the numbers of decoding without."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from chockstone.sampling.fused.llama import FusedLlama
from chockstone.sampling.products import packing
from chockstone.sampling.products.packing import PackedMatrices
from support.sampling.making import Served, llama, mixed_requests, qwen3, tokens_of

WEIGHTS = [torch.randn(128, 64), torch.randn(64, 128), torch.randn(8, 8)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices are packed, too, and no adapter is merged into them."""
    monkeypatch.setattr(packing, "_SMALLEST", 1000)
    monkeypatch.setattr("chockstone.sampling.fused.adapter.MERGE_BYTES", 0)


def packed_of(served: Served) -> PackedMatrices:
    network = served.sampled.network
    assert isinstance(network, FusedLlama)
    return network._weights.packed


@pytest.mark.parametrize("rows", [2, 3, 8, 17, 32])
def test_a_packed_product_is_the_product(rows: int) -> None:
    packed = PackedMatrices(WEIGHTS, limit_bytes=1 << 20)
    x = torch.randn(rows, 64)

    assert packed.has(0, WEIGHTS[0])
    torch.testing.assert_close(packed.product(0, x), x @ WEIGHTS[0].t(), rtol=1e-5, atol=1e-5)


def test_matrices_are_packed_when_they_are_needed_first() -> None:
    packed = PackedMatrices(WEIGHTS, limit_bytes=1 << 20)
    assert packed.size_bytes == 0

    packed.product(1, torch.randn(2, 128))
    packed.product(1, torch.randn(9, 128))

    assert packed.size_bytes == WEIGHTS[1].nbytes


def test_small_matrices_other_types_and_merged_ones_are_not_packed() -> None:
    packed = PackedMatrices([*WEIGHTS, WEIGHTS[0].bfloat16()], limit_bytes=1 << 20)

    assert not packed.has(2, WEIGHTS[2])
    assert not packed.has(3, WEIGHTS[0].bfloat16())
    assert not packed.has(0, WEIGHTS[0].clone())


def test_nothing_is_packed_beyond_the_limit() -> None:
    assert not PackedMatrices(WEIGHTS, limit_bytes=WEIGHTS[0].nbytes).has(0, WEIGHTS[0])
    assert not PackedMatrices(WEIGHTS, limit_bytes=0).has(0, WEIGHTS[0])


@pytest.mark.parametrize("make", [qwen3, llama])
def test_decoding_with_packed_matrices_gives_the_numbers_of_decoding_without(
    make: Callable[..., PreTrainedModel],
) -> None:
    model = make(intermediate_size=64)
    plain, packing_ = Served(model), Served(model, packable_bytes=1 << 30)
    requests, adapter = mixed_requests(), plain.adapter(1)

    for chosen in (None, adapter):
        expected = plain.sample(*requests, adapter=chosen)
        found = packing_.sample(*requests, adapter=chosen)
        again = packing_.sample(*requests, adapter=chosen)
        for ours, theirs, repeated in zip(found, expected, again, strict=True):
            assert tokens_of(ours) == tokens_of(theirs)
            for one, other, third in zip(ours.sequences, theirs.sequences, repeated.sequences, strict=True):
                np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
                np.testing.assert_array_equal(one.logprobs, third.logprobs)

    assert packed_of(plain).size_bytes == 0
    assert packed_of(packing_).size_bytes > 0
