"""Bytes of tensors are counted while they live, also where nothing is allocated."""

from __future__ import annotations

import pytest
import torch

from chockstone.backends.planning.live_bytes import LiveBytes


@pytest.mark.parametrize("name", ["meta", "cpu"])
def test_tensors_count_from_their_creation_to_their_end(name: str) -> None:
    device = torch.device(name)
    earlier = torch.zeros(1000, device=device)

    with LiveBytes(device) as live:
        first = torch.zeros(100, device=device)
        second = earlier + 1
        assert live.now == 400 + 4000
        view = first.view(10, 10).T
        assert live.now == 4400, "a view takes nothing"
        del second
        first += 1
        assert (live.now, live.peak) == (400, 4400)
        del first
        assert live.now == 400, "the view refers to it"
        del view

    assert (live.now, live.peak) == (0, 4400)


def test_a_backward_pass_is_counted() -> None:
    weight = torch.zeros(50, 50, device="meta", requires_grad=True)

    with LiveBytes(torch.device("meta")) as live:
        hidden = torch.zeros(7, 50, device="meta") @ weight
        torch.autograd.backward(hidden, torch.ones(7, 50, device="meta"))

    assert live.peak == 3 * 7 * 50 * 4 + 50 * 50 * 4


def test_other_devices_do_not_count() -> None:
    with LiveBytes(torch.device("meta")) as live:
        torch.zeros(100)

    assert live.peak == 0
