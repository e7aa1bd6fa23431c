from __future__ import annotations

import torch

from chockstone.backends.training.packing.scored_rows import ScoredRows

SHARED = ScoredRows(torch.tensor([0, 1, 2, 0, 1, 3]))
OWN = ScoredRows(None)


def test_positions_read_the_row_they_share() -> None:
    values = torch.tensor([[1.0], [2.0], [3.0], [4.0]])

    assert SHARED.read(values, slice(None)).flatten().tolist() == [1, 2, 3, 1, 2, 4]
    assert SHARED.readers(slice(1, 3)).tolist() == [1, 2, 4]  # type: ignore[union-attr]  # a tensor here
    assert SHARED.read(values, SHARED.readers(slice(1, 3))).flatten().tolist() == [2, 3, 2]


def test_gradients_of_the_readers_of_a_row_are_added() -> None:
    readers = SHARED.readers(slice(1, 3))

    assert SHARED.add(torch.tensor([[1.0], [10.0], [100.0]]), readers, slice(1, 3)).flatten().tolist() == [101, 10]


def test_rows_take_the_values_of_their_readers() -> None:
    written = SHARED.write(torch.tensor([[5], [6], [7], [5], [6], [8]]), 4)

    assert written.flatten().tolist() == [5, 6, 7, 8]


def test_without_sharing_rows_are_positions() -> None:
    values = torch.tensor([[1.0], [2.0], [3.0]])

    assert OWN.readers(slice(0, 2)) == slice(0, 2)
    assert torch.equal(OWN.read(values, slice(0, 2)), values[:2])
    assert torch.equal(OWN.add(values, slice(0, 2), slice(0, 2)), values)
    assert OWN.write(values, 3) is values
