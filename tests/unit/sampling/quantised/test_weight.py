from __future__ import annotations

import math

import pytest
import torch

from chockstone.sampling.quantised import weight as quantised
from chockstone.sampling.quantised.weight import (
    GROUP,
    NF4,
    QuantisedPrecision,
    QuantisedWeight,
    dense,
    empty_weight,
    quantise,
)

PRECISIONS: list[QuantisedPrecision] = ["8bit", "4bit"]
SHAPES = [(5, 64), (7, 192), (3, 40), (4, 100), (2, 3, 64), (1, 1)]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.empty(shape).normal_(0, 0.1, generator=torch.Generator().manual_seed(seed))


def smallest_errors(weight: torch.Tensor, precision: QuantisedPrecision) -> torch.Tensor:
    """How far the nearest number is that a code stands for, one number at a time."""
    rows = weight.to(torch.bfloat16).double().reshape(-1, weight.shape[-1])
    result = torch.empty_like(rows)
    for row, numbers in enumerate(rows.tolist()):
        width = len(numbers) if precision == "8bit" else GROUP
        for start in range(0, len(numbers), width):
            group = numbers[start : start + width]
            absmax = max(map(abs, group))
            values = [n / 127 for n in range(-127, 128)] if precision == "8bit" else list(NF4)
            for index, number in enumerate(group):
                result[row, start + index] = min(abs(value * absmax - number) for value in values)
    return result.reshape(weight.shape).float()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_number_becomes_the_nearest_that_a_code_stands_for(
    precision: QuantisedPrecision, shape: tuple[int, ...]
) -> None:
    weight = random(*shape)

    numbers = quantise(weight, precision, dtype=torch.float32).dequantised()

    assert numbers.shape == shape and numbers.dtype == torch.float32
    errors = (numbers - weight.bfloat16()).abs()  # not the numbers: some are in the middle between two
    torch.testing.assert_close(errors, smallest_errors(weight, precision), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_codes_do_not_depend_on_the_type_a_model_is_loaded_in(precision: QuantisedPrecision) -> None:
    weight = random(9, 128)

    from_float, from_half = (quantise(w, precision, dtype=w.dtype) for w in (weight, weight.bfloat16()))

    assert torch.equal(from_float.codes, from_half.codes) and torch.equal(from_float.scales, from_half.scales)
    assert from_half.dequantised().dtype == torch.bfloat16
    assert torch.equal(from_half.dequantised(), from_float.dequantised().bfloat16())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_stand_for_themselves(precision: QuantisedPrecision) -> None:
    weight = random(12, 100)

    whole = quantise(weight, precision, dtype=torch.float32)
    parts = [quantise(rows, precision, dtype=torch.float32) for rows in weight.split([5, 7])]

    assert torch.equal(whole.codes, torch.cat([part.codes for part in parts]))
    assert torch.equal(whole.scales, torch.cat([part.scales for part in parts]))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_blocks_change_no_bit(precision: QuantisedPrecision, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random(11, 96)
    whole = quantise(weight, precision, dtype=torch.float32)
    monkeypatch.setitem(quantised._BLOCK, "cpu", 200)

    blocks = quantise(weight, precision, dtype=torch.float32)

    assert torch.equal(blocks.codes, whole.codes) and torch.equal(blocks.scales, whole.scales)
    assert torch.equal(blocks.dequantised(), whole.dequantised())


@pytest.mark.parametrize(("precision", "bytes_per_number"), [("8bit", 1 + 4 / 256), ("4bit", 0.5 + 2 / 64)])
def test_a_quantised_weight_takes_half_or_a_quarter_of_bfloat16(
    precision: QuantisedPrecision, bytes_per_number: float
) -> None:
    weight = quantise(random(32, 256), precision, dtype=torch.bfloat16)

    assert weight.nbytes == bytes_per_number * 32 * 256
    assert (weight.shape, weight.ndim, weight.numel()) == ((32, 256), 2, 32 * 256)
    assert weight.precision == precision and weight.dtype == torch.bfloat16


@pytest.mark.parametrize("precision", PRECISIONS)
def test_zeros_stay_zeros(precision: QuantisedPrecision) -> None:
    weight = torch.zeros(4, 128)
    weight[1, 70] = 2.0

    assert torch.equal(quantise(weight, precision, dtype=torch.float32).dequantised(), weight)


@pytest.mark.parametrize(("precision", "bound"), [("8bit", 0.01), ("4bit", 0.11)])
def test_the_error_of_normal_weights_is_small(precision: QuantisedPrecision, bound: float) -> None:
    weight = random(64, 512)

    error = quantise(weight, precision, dtype=torch.float32).dequantised() - weight

    assert bound / 2 < float(error.norm() / weight.norm()) < bound


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_empty_memory_has_the_layout_of_a_quantised_weight(
    precision: QuantisedPrecision, shape: tuple[int, ...]
) -> None:
    made = quantise(random(*shape), precision, dtype=torch.float32)

    empty = empty_weight(shape, precision, dtype=torch.float32, device=torch.device("meta"))

    assert (empty.codes.shape, empty.codes.dtype) == (made.codes.shape, made.codes.dtype)
    assert (empty.scales.shape, empty.scales.dtype) == (made.scales.shape, made.scales.dtype)
    assert empty.shape == made.shape == shape


def test_the_numbers_of_a_tensor_are_the_tensor() -> None:
    weight = random(3, 64)

    assert dense(weight) is weight
    assert math.prod(dense(quantise(weight, "4bit", dtype=torch.float32)).shape) == weight.numel()


def test_the_first_number_of_a_byte_is_in_its_upper_half() -> None:
    codes = torch.tensor([[0xF0] + [0x77] * 31], dtype=torch.uint8)

    numbers = QuantisedWeight(codes, torch.tensor([[2.0]]), GROUP, torch.float32).dequantised()

    assert numbers[0, :3].tolist() == [2.0, -2.0, 0.0]
