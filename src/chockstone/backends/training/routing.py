# tensors carry their axes
"""Recorded routing of a micro-batch: the experts that its tokens are computed with.

Shapes: L layers with experts, N rows of the model's input, R positions of all examples, K experts of each token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chockstone.backends.training.examples import Example
from chockstone.sampling.experts.routers import FREE


def place_routing(
    examples: Sequence[Example], rows_R: torch.Tensor, *, count: int, device: torch.device
) -> torch.Tensor | None:
    """[L, N, K] with ``count`` rows; ``rows_R`` says in which row each position is. Rows without a record are free.

    None: no example has a record.
    """
    known = [example.routing_LNK for example in examples if example.routing_LNK is not None]
    if not known:
        return None
    layers, _, experts = known[0].shape
    placed_LNK = torch.full((layers, count, experts), FREE)
    start = 0
    for example in examples:
        if (routing_LNK := example.routing_LNK) is not None:
            placed_LNK[:, rows_R[start : start + routing_LNK.shape[1]]] = routing_LNK
        start += len(example.tokens_N)
    return placed_LNK.to(device)


def padded_rows(lengths: Sequence[int]) -> torch.Tensor:
    """[R]: the rows of positions that are padded on the right to the greatest length."""
    width = max(lengths)
    return torch.cat([torch.arange(length) + number * width for number, length in enumerate(lengths)])
