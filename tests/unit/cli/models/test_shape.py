from __future__ import annotations

from typing import get_args

import pytest

from chockstone.cli.models.shape import Architecture, choose_shape, choose_vocab_size

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("millions", [1, 1.3, 2, 3, 4.9, 5, 8, 10, 21, 30, 49, 50, 77, 100, 140, 199, 200, 250, 300])
def test_every_size_is_met_closely_and_in_proportion(architecture: Architecture, millions: float) -> None:
    wanted = int(millions * 1e6)

    shape = choose_shape(architecture, parameters=wanted, vocab_size=choose_vocab_size(wanted))

    assert shape.parameters == pytest.approx(wanted, rel=0.03)
    assert 2 <= shape.intermediate_size / shape.hidden_size <= 4
    assert shape.heads % shape.key_heads == 0
    assert shape.vocab_size * shape.hidden_size < 0.2 * wanted
