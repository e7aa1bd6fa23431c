# tensors carry their axes
"""Quantised weights: the codes and scales of a matrix, and the functions that make numbers of them.

8bit  one signed byte per number, one scale per row: ``number = code * scale``, with ``scale = absmax / 127``.
4bit  NF4: two numbers per byte, the first in the upper half. A code selects one of 16 values between -1 and 1, which is
      multiplied with the absmax of its group of 64 numbers of the row. The last group of a row is filled up with zeros.

Rows do not share anything, so the rows of a quantised matrix are the quantised rows of the matrix: matrices can be
concatenated and sharded along the first axis. Numbers are rounded to bfloat16 before they are quantised. The codes then
depend on the files of a model alone, whatever type the model is loaded in.

Shapes: O rows (all leading axes in one), I inputs, G groups of a row, S numbers of a group, B bytes of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final, Literal

import torch

QuantisedPrecision = Literal["8bit", "4bit"]
GROUP: Final = 64  # numbers that share a scale in 4bit
_LARGEST: Final = 127  # code of 8bit
_BLOCK: Final = {"cpu": 1 << 18}  # numbers that are computed at once: on a CPU they stay in its cache
_BLOCK_ON_GPU: Final = 1 << 25
NF4: Final = (  # quantiles of a normal distribution, as the QLoRA paper and bitsandbytes define them
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
_MIDDLES: Final = tuple((low + high) / 2 for low, high in pairwise(NF4))  # a number gets the code of the nearest value


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedWeight:
    """``codes`` and ``scales`` have the leading axes of the matrix, or of a stack of matrices."""

    codes: torch.Tensor  # int8 [..., I] in 8bit, uint8 [..., G * 32] in 4bit
    scales: torch.Tensor  # [...] in 8bit, [..., G] in 4bit
    width: int  # I
    dtype: torch.dtype  # of the numbers

    @property
    def precision(self) -> QuantisedPrecision:
        return "8bit" if self.codes.dtype == torch.int8 else "4bit"

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.codes.shape[:-1], self.width)

    @property
    def ndim(self) -> int:
        return self.codes.ndim

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def numel(self) -> int:
        return math.prod(self.shape)

    @torch.no_grad()
    def dequantised(self) -> torch.Tensor:
        """The numbers, in memory of their own. Equal codes and scales give equal bits on every call."""
        codes_OB = self.codes.reshape(-1, self.codes.shape[-1])
        scales_OG = self.scales.reshape(len(codes_OB), -1)
        numbers_OI = torch.empty(len(codes_OB), self.width, dtype=self.dtype, device=self.device)
        to_numbers = _from_8bit if self.precision == "8bit" else _from_4bit
        for rows in _blocks(len(codes_OB), self.width, device=self.device):
            to_numbers(codes_OB[rows], scales_OG[rows], numbers_OI[rows])
        return numbers_OI.view(self.shape)


FrozenWeight = torch.Tensor | QuantisedWeight


def dense(weight: FrozenWeight) -> torch.Tensor:
    """The numbers of a weight. Those of a tensor are the tensor itself."""
    return weight.dequantised() if isinstance(weight, QuantisedWeight) else weight


@torch.no_grad()
def quantise(weight: torch.Tensor, precision: QuantisedPrecision, *, dtype: torch.dtype) -> QuantisedWeight:
    """``weight`` [..., I] of any floating type. ``dtype``: of the numbers that ``dequantised`` gives."""
    quantised = empty_weight(tuple(weight.shape), precision, dtype=dtype, device=weight.device)
    weight_OI = weight.reshape(-1, weight.shape[-1])
    codes_OB = quantised.codes.view(len(weight_OI), -1)
    scales = quantised.scales.view(len(weight_OI), *quantised.scales.shape[weight.ndim - 1 :])
    for rows in _blocks(*weight_OI.shape, device=weight.device):
        numbers_OI = weight_OI[rows].to(torch.bfloat16).float()
        codes_OB[rows], scales[rows] = _to_8bit(numbers_OI) if precision == "8bit" else _to_4bit(numbers_OI)
    return quantised


def empty_weight(
    shape: tuple[int, ...], precision: QuantisedPrecision, *, dtype: torch.dtype, device: torch.device
) -> QuantisedWeight:
    """Memory for the codes and scales of a weight of this shape. What is in it is not set."""
    *leading, width = shape
    groups = -(-width // GROUP)
    if precision == "8bit":
        codes = torch.empty(*leading, width, dtype=torch.int8, device=device)
        scales = torch.empty(*leading, dtype=torch.float32, device=device)
    else:
        codes = torch.empty(*leading, groups * GROUP // 2, dtype=torch.uint8, device=device)
        scales = torch.empty(*leading, groups, dtype=torch.bfloat16, device=device)  # exact: the numbers are bfloat16
    return QuantisedWeight(codes, scales, width, dtype)


def _to_8bit(numbers_OI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale_O = numbers_OI.abs().amax(1) / _LARGEST
    divisor_O1 = torch.where(scale_O > 0, scale_O, 1.0)[:, None]
    return (numbers_OI / divisor_O1).round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8), scale_O


def _to_4bit(numbers_OI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = numbers_OI.shape
    padded = torch.nn.functional.pad(numbers_OI, (0, -width % GROUP))
    groups_OGS = padded.view(height, -1, GROUP)
    absmax_OG = groups_OGS.abs().amax(2)
    divisor_OG1 = torch.where(absmax_OG > 0, absmax_OG, 1.0)[..., None]
    ratios_OGS = groups_OGS / divisor_OG1
    codes_OGS = torch.zeros(ratios_OGS.shape, dtype=torch.uint8, device=ratios_OGS.device)
    for middle in _MIDDLES:  # many times as fast as bucketize
        codes_OGS += ratios_OGS > middle
    halves = codes_OGS.view(height, -1, 2)
    return (halves[..., 0] << 4) | halves[..., 1], absmax_OG


def _from_8bit(codes_OI: torch.Tensor, scales_O1: torch.Tensor, numbers_OI: torch.Tensor) -> None:
    numbers_OI.copy_(codes_OI).mul_(scales_O1)


def _from_4bit(codes_OB: torch.Tensor, scales_OG: torch.Tensor, numbers_OI: torch.Tensor) -> None:
    pairs = _pairs(codes_OB.device).index_select(0, codes_OB.reshape(-1).int())
    groups_OGS = pairs.view(torch.float32).view(*scales_OG.shape, GROUP)
    groups_OGS.mul_(scales_OG[..., None])
    numbers_OI.copy_(groups_OGS.view(len(codes_OB), -1)[:, : numbers_OI.shape[1]])


def _blocks(height: int, width: int, *, device: torch.device) -> Iterator[slice]:
    step = max(1, _BLOCK.get(device.type, _BLOCK_ON_GPU) // max(width, 1))
    for start in range(0, height, step):
        yield slice(start, min(start + step, height))


@cache
def _pairs(device: torch.device) -> torch.Tensor:
    """By byte: its two values, as the 64 bits of two float32 numbers. One look-up gives both."""
    with torch.inference_mode(mode=False):  # it is kept, for training as well
        values = torch.tensor(NF4)
        byte = torch.arange(256)
        return torch.stack((values[byte >> 4], values[byte & 15]), 1).view(torch.int64).view(-1).to(device)
