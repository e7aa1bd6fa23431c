"""Flat tensors, and what is measured of them."""

from __future__ import annotations

import math

import pytest
import torch

from chockstone.backends.training.flat_parameters import measure_norm


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 5000])
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25, 0.0])
def test_a_norm_is_exact_whatever_the_size_of_the_numbers(size: int, scale: float) -> None:
    flat = torch.randn(size, generator=torch.Generator().manual_seed(size)) * scale

    assert measure_norm(flat) == pytest.approx(math.sqrt(sum(number**2 for number in flat.tolist())), rel=1e-7)


def test_a_norm_is_exact_for_many_numbers() -> None:
    flat = torch.full([5_000_001], 0.1)

    assert measure_norm(flat) == pytest.approx(float(flat[0]) * math.sqrt(len(flat)), rel=1e-6)


@pytest.mark.parametrize("where", [0, 1500, 2047, 2048, 2999])
@pytest.mark.parametrize("what", [math.inf, -math.inf, math.nan])
def test_a_norm_is_finite_only_if_every_number_is(where: int, what: float) -> None:
    flat = torch.full([3000], 1e30)
    assert math.isfinite(measure_norm(flat))

    flat[where] = what

    assert not math.isfinite(measure_norm(flat))
