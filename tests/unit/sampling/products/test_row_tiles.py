from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from chockstone.sampling.products import row_tiles
from chockstone.sampling.products.matmul import matmul
from chockstone.sampling.products.row_tiles import TILE, RowTiles

DTYPES = [torch.float32, torch.bfloat16]


def inputs(dtype: torch.dtype, rows: int = 300, width: int = 96) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    weight = torch.randn(40, width, generator=random).to(dtype)
    return torch.randn(rows, width, generator=random).to(dtype), weight.t()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(dtype: torch.dtype, threads: int) -> None:
    torch.set_num_threads(threads)
    x, weight = inputs(dtype)
    tiles = RowTiles(128)
    whole = tiles.product(x, weight)

    for start, stop in ((0, 1), (5, 8), (17, 49), (3, 300), (100, 229), (299, 300)):
        assert torch.equal(tiles.product(x[start:stop], weight), whole[start:stop])
    shuffled = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    assert torch.equal(tiles.product(x[shuffled], weight), whole[shuffled])
    torch.testing.assert_close(whole, x @ weight)


def count_sizes(monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], None]) -> list[int]:
    """The numbers of rows that are multiplied from now on; ``change`` is made to each product."""
    sizes = []

    def count(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        product = matmul(x, weight)
        change(product)
        return product

    monkeypatch.setattr(row_tiles, "matmul", count)
    return sizes


def test_sizes_that_round_otherwise_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_sizes(monkeypatch, lambda product: product.mul_(1.5) if len(product) in (64, 112) else None)
    x, weight = inputs(torch.float32, rows=100)
    tiles = RowTiles(256)

    for _ in range(2):
        sizes.clear()
        torch.testing.assert_close(tiles.product(x, weight), x @ weight)

    assert sizes == [32, 32, 32, 16], "the second time nothing is tried"


def test_where_rows_of_a_tile_differ_each_row_is_multiplied_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_sizes(monkeypatch, lambda product: product[-1].add_(1) if len(product) > 1 else None)
    x, weight = inputs(torch.float32)
    tiles = RowTiles(200)

    assert not tiles.is_exact(weight)
    sizes.clear()
    torch.testing.assert_close(tiles.product(x, weight), x @ weight)
    assert sizes == [1] * 300


def test_the_largest_tile_is_bounded_by_the_rows_and_by_the_size_of_the_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = count_sizes(monkeypatch, lambda _: None)
    x, weight = inputs(torch.float32)
    RowTiles(100).product(x, weight)
    assert max(sizes) <= 96

    sizes.clear()
    RowTiles(1024).product(x[:, :1], torch.zeros(1, 1 << 18))
    assert max(sizes) == TILE
