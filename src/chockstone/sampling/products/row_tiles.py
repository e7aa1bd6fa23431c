"""Row tiles: matrix products in which a row's bits do not depend on the rows beside it.

A kernel is chosen by the number of rows, and kernels round differently. So a product is computed in tiles of sizes that
were tried before: all of them gave each row the same bits.

Shapes: N rows, K inputs, M outputs.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812  # the name everyone reads

from chockstone.sampling.products.matmul import matmul

TILE: Final = 16  # rows of the smallest tile; the last rows of a product are padded to it
_MOST_ELEMENTS: Final = 1 << 22  # of a product that is tried: an output layer takes long


class RowTiles:
    """A kernel may also depend on the number of threads, so each number of threads is tried by itself."""

    def __init__(self, most_rows: int) -> None:
        """``most_rows``: of one tile; a larger one is no faster."""
        self._most_rows = most_rows
        self._products: dict[tuple[object, ...], _Product] = {}

    def product(self, x_NK: torch.Tensor, weight_KM: torch.Tensor) -> torch.Tensor:
        """``x @ weight``."""
        rows, known = len(x_NK), self._product(weight_KM)
        if not known.is_exact:
            return torch.cat([matmul(x_NK[row : row + 1], weight_KM) for row in range(rows)])
        padded = rows + -rows % TILE
        if padded > rows:
            x_NK = F.pad(x_NK, (0, 0, 0, padded - rows))
        if known.agrees(padded, weight_KM):
            return matmul(x_NK, weight_KM)[:rows]
        y_NM = x_NK.new_empty(padded, weight_KM.shape[1])
        start = 0
        while start < padded:
            size = known.largest(padded - start, weight_KM)
            y_NM[start : start + size] = matmul(x_NK[start : start + size], weight_KM)
            start += size
        return y_NM[:rows]

    def is_exact(self, weight_KM: torch.Tensor) -> bool:
        """Whether rows of the smallest tile have the same bits at each place in it. If not, rows are computed alone."""
        return self._product(weight_KM).is_exact

    def _product(self, weight_KM: torch.Tensor) -> _Product:
        shape = (*weight_KM.shape, *weight_KM.stride(), weight_KM.dtype, torch.get_num_threads())
        if shape not in self._products:
            most = min(self._most_rows, _MOST_ELEMENTS // weight_KM.shape[1])
            self._products[shape] = _Product(weight_KM, max(TILE, most - most % TILE))
        return self._products[shape]


class _Product:
    """Which numbers of rows give a row the bits that it has in the smallest tile; tried when they are first needed."""

    def __init__(self, weight_KM: torch.Tensor, most_rows: int) -> None:
        self._most_rows = most_rows
        tile_NK = _draw_rows(TILE, weight_KM)
        self.is_exact = torch.equal(matmul(tile_NK.roll(5, 0), weight_KM), matmul(tile_NK, weight_KM).roll(5, 0))
        self._agrees = {TILE: True}

    def agrees(self, rows: int, weight_KM: torch.Tensor) -> bool:
        if rows > self._most_rows:
            return False
        if rows not in self._agrees:
            x_NK = _draw_rows(rows, weight_KM)
            tiles_NM = [matmul(x_NK[row : row + TILE], weight_KM) for row in range(0, rows, TILE)]
            self._agrees[rows] = torch.equal(matmul(x_NK, weight_KM), torch.cat(tiles_NM))
        return self._agrees[rows]

    def largest(self, rows: int, weight_KM: torch.Tensor) -> int:
        """The largest tile for so many rows, a power of two times the smallest."""
        size = TILE
        while 2 * size <= rows and self.agrees(2 * size, weight_KM):
            size *= 2
        return size


def _draw_rows(rows: int, weight_KM: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(weight_KM.device).manual_seed(rows)
    x_NK = torch.randn(rows, weight_KM.shape[0], generator=generator, device=weight_KM.device)
    return x_NK.to(weight_KM.dtype)
