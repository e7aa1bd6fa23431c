from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from chockstone.wire.codecs import json_values
from chockstone.wire.failures import BadRequest


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("x" * 200, f"'{'x' * 79}"),
        (10**100, "an integer of more than 100 bits"),
        ([1], "a list"),
        ({}, "an object"),
    ],
)
def test_a_value_is_described_as_json_calls_it(value: object, words: str) -> None:
    assert json_values.describe(value) == words


@pytest.mark.parametrize(
    ("read", "value", "words"),
    [
        (json_values.read_object, [], "n must be an object, not a list."),
        (json_values.read_text, 1, "n must be a string, not 1."),
        (json_values.read_text, "", "n must not be empty."),
        (json_values.read_text, "\ud800", "n is not Unicode text: surrogates not allowed."),
        (json_values.read_bool, 1, "n must be true or false, not 1."),
        (json_values.read_integer, True, "n must be an integer between"),
        (json_values.read_integer, 2**63, "n must be an integer between"),
        (json_values.read_number, "1", "n must be a number, not '1'."),
        (json_values.read_number, float("nan"), "n must be finite, not nan."),
        (json_values.read_number, 10**400, "n must be a number, not an integer of more than 100 bits."),
        (json_values.read_integers, 1, "n must be a list of integers, not 1."),
        (json_values.read_integers, [1, 2.0], "n[1] must be an integer between"),
        (json_values.read_floats, "1", "n must be a list of numbers, not '1'."),
        (json_values.read_floats, [1, None], "n[1] must be a number, not null."),
        (json_values.read_floats, [10**400], "n has an integer that is too large for float32."),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(read: Callable[[object, str], object], value: object, words: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        read(value, "n")

    assert str(refusal.value).startswith(words)


def test_lists_become_arrays() -> None:
    assert json_values.read_integers([1, -2], "n").dtype == np.int64
    assert json_values.read_floats([1, 2.5], "n").tolist() == [1.0, 2.5]
    assert np.isinf(json_values.read_floats([1e300], "n")).all()  # left to ``tensors.check_finite``
