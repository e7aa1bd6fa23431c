from __future__ import annotations

import torch

from chockstone.backends.training.examples import Example
from chockstone.backends.training.routing import padded_rows, place_routing

CPU = torch.device("cpu")


def example(length: int, routing: torch.Tensor | None) -> Example:
    return Example(0, torch.zeros(length).long(), torch.zeros(length, 1).long(), (length,), {}, routing)


def test_records_are_placed_in_the_rows_of_their_positions() -> None:
    first, second = torch.full((3, 2, 2), 5), torch.full((3, 4, 2), 7)  # the first lacks its last position
    examples = [example(3, first), example(2, None), example(4, second)]

    placed = place_routing(examples, padded_rows([3, 2, 4]), count=12, device=CPU)

    assert placed is not None and placed.shape == (3, 12, 2)
    assert placed[1, :, 0].tolist() == [5, 5, -1, -1, -1, -1, -1, -1, 7, 7, 7, 7]


def test_a_batch_without_records_is_not_forced() -> None:
    assert place_routing([example(3, None)], padded_rows([3]), count=3, device=CPU) is None
