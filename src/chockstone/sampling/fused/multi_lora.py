"""Multi-LoRA matrix products: a flat batch whose rows belong to several adapters."""

from __future__ import annotations

from collections.abc import Sequence as Many
from itertools import groupby
from typing import Final

import torch

from chockstone.sampling.experts.modules import expert_projections
from chockstone.sampling.fused.adapter import Addition, FusedAdapter
from chockstone.sampling.fused.weights import ExpertBlock, FusedWeights
from chockstone.sampling.products.matmul import is_mkl_slow, linear
from chockstone.sampling.products.packing import FEWEST_ROWS, MOST_ROWS
from chockstone.sampling.products.row_tiles import RowTiles
from chockstone.sampling.quantised.weight import FrozenWeight, dense

_FEW_ROWS: Final = 256
_BLOCK: Final = 128  # rows of a weight
_SMALL: Final = 1 << 18  # elements of a weight; below, adding in place is faster


class MultiLoraMatmul:
    """``adapters``: an adapter and a number of rows for each range of rows, in the order of the rows.

    With ``tiles``, a row's bits do not depend on the other rows. ``is_decoding``: few rows are multiplied with packed
    matrices, which are made for that if there are none.
    """

    def __init__(
        self,
        weights: FusedWeights,
        adapters: Many[tuple[FusedAdapter, int]],
        tiles: RowTiles | None = None,
        *,
        is_decoding: bool = False,
    ) -> None:
        self._tiles = tiles
        self._matrices = weights.matrices
        self._packed = weights.packed
        self._ranges: list[tuple[FusedAdapter, int, int]] = []
        start = 0
        for adapter, group in groupby(adapters, key=lambda one: one[0]):
            stop = start + sum(count for _, count in group)
            self._ranges.append((adapter, start, stop))
            start = stop
        self._first = self._ranges[0][0]
        self._turned: dict[int, torch.Tensor] = {}  # views of weights of the first adapter
        self._is_uniform = len(self._ranges) == 1
        # With several threads, MKL multiplies few rows fastest with the weights on the left, split into blocks.
        is_cpu = weights.embedding.device.type == "cpu"
        self._is_in_onednn = is_cpu and is_mkl_slow() and start > MOST_ROWS
        is_few = start <= _FEW_ROWS and not self._is_in_onednn
        self._is_transposed = is_cpu and is_few and torch.get_num_threads() > 1
        self._is_packing = is_decoding and FEWEST_ROWS <= start <= MOST_ROWS

    def product(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """``x @ weight.T + bias`` of product ``number``, each row by its adapter's weights; perhaps strided."""
        if self._is_uniform:
            y = self._times(x, self._first.weights[number], number)
            if (addition := self._first.additions[number]) is not None:
                self._add(y, x, addition)
            return y
        weight = self._first.weights[number]
        if any(adapter.weights[number] is not weight for adapter, _, _ in self._ranges):  # merged: each has its own
            parts = [self._times(x[a:b], adapter.weights[number], number) for adapter, a, b in self._ranges]
            return torch.cat(parts)
        y = self._times(x, weight, number)
        for adapter, a, b in self._ranges:
            if (addition := adapter.additions[number]) is not None:
                self._add(y[a:b], x[a:b], addition)
        return y

    def add_product(self, number: int, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``residual += product(number, x)``, in place."""
        weight = self._first.weights[number]
        is_plain = self._is_uniform and self._matrices[number].bias is None
        is_packed = self._is_packing and self._packed.has(number, weight)
        is_elsewhere = self._tiles is not None or is_packed or self._is_in_onednn
        is_apart = is_elsewhere or (self._is_transposed and weight.numel() > _SMALL)
        if is_apart or not is_plain:
            return residual.add_(self.product(number, x))
        residual.addmm_(x, self._turn(weight, number))
        if (addition := self._first.additions[number]) is not None:
            residual.addmm_(torch.mm(x, addition.down_t), addition.up_t)
        return residual

    def mix(self, block: ExpertBlock, x_NH: torch.Tensor) -> torch.Tensor:
        """The outputs of routed experts, each row by its adapter's."""
        projections = expert_projections({block.name: block.experts})
        parts = []
        for adapter, a, b in self._ranges:
            for name, projection in projections.items():
                projection.active, projection.scale = adapter.experts.layers.get(name), adapter.experts.scale
            try:
                parts.append(block.module(x_NH[None, a:b])[0])
            finally:
                for projection in projections.values():
                    projection.active = None
        return parts[0] if self._is_uniform else torch.cat(parts)

    def _add(self, y: torch.Tensor, x: torch.Tensor, addition: Addition) -> None:
        if self._tiles is None:
            y.addmm_(torch.mm(x, addition.down_t), addition.up_t)
        else:
            y.add_(self._tiles.product(self._tiles.product(x, addition.down_t), addition.up_t))

    def _turn(self, frozen: FrozenWeight, number: int) -> torch.Tensor:
        """The transposed weight. A view is made once, not in each step."""
        if not isinstance(frozen, torch.Tensor) or frozen is not self._first.weights[number]:
            return dense(frozen).t()
        if (turned := self._turned.get(number)) is None:
            turned = self._turned[number] = frozen.t()
        return turned

    def _times(self, x: torch.Tensor, frozen: FrozenWeight, number: int) -> torch.Tensor:
        bias = self._matrices[number].bias
        if self._tiles is not None:
            y = self._tiles.product(x, self._turn(frozen, number))
            return y if bias is None else y.add_(bias)
        if self._is_packing and self._packed.has(number, frozen):
            y = self._packed.product(number, x)
            return y if bias is None else y.add_(bias)
        if self._is_in_onednn:
            return linear(x, dense(frozen), bias)
        if not self._is_transposed:
            turned = self._turn(frozen, number)
            return torch.mm(x, turned) if bias is None else torch.addmm(bias, x, turned)
        weight = dense(frozen)
        width, inputs = weight.shape
        if width % _BLOCK:
            y = torch.mm(weight, x.t()).t()
        else:
            blocks = weight.view(-1, _BLOCK, inputs)
            y = torch.bmm(blocks, x.t().expand(len(blocks), -1, -1)).view(width, -1).t()
        return y if bias is None else y.add_(bias)
