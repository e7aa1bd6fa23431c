from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.checkpoints.errors import ImportRefused
from chockstone.integrations.formats.reading.type_notes import apply_notes, encode_notes, make_plain
from support.integrations.foreign import same

STATE: dict[str, Any] = {
    "array": [np.arange(3)],
    "number": (np.float32(2),),
    "ordered": OrderedDict(x=frozenset({1})),
    "counter": Counter("ab"),
    "keys": {1: torch.ones(2), "1": torch.zeros(2), (1, 2): torch.full((1,), 3.0)},
    "empty": {},
}


def as_text(value: Any) -> Any:
    """As DCP returns a state: keys are text, empty containers are gone."""
    if isinstance(value, dict):
        return {str(key): as_text(item) for key, item in value.items()}
    return value


def test_a_state_is_rebuilt_from_its_plain_form() -> None:
    plain, counts = make_plain(STATE)

    assert isinstance(plain["array"][0], torch.Tensor) and plain["ordered"]["x"] == {1}
    assert counts == {"numpy array": 1, "numpy number": 1, "frozenset": 1}
    assert same(apply_notes(encode_notes(STATE), plain, name="file"), STATE)


def test_keys_that_became_text_are_restored() -> None:
    state = {**STATE, "keys": {1: torch.ones(2), (1, 2): torch.zeros(1)}}
    plain, _ = make_plain(state)

    assert same(apply_notes(encode_notes(state), as_text(plain), name="file"), state)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'{"state": {}}',
        b'{"state": {"w": {"$": "tensor", "group": "w", "key": "value"}}, "tensors": []}',
        b'{"state": {"w": {"$": "system"}}, "tensors": []}',
        encode_notes({"x": torch.ones(1)}),
        encode_notes({"w": {"y": torch.ones(1)}}),
    ],
)
def test_notes_that_do_not_fit_are_refused(content: bytes) -> None:
    with pytest.raises(ImportRefused, match="do not fit"):
        apply_notes(content, {"w": torch.ones(1)}, name="file")


def test_tied_tensors_are_one_object_again() -> None:
    memory = torch.ones(4)

    plain, _ = make_plain({"a": memory[:2], "b": memory[:2], "c": memory[2:]})

    assert plain["a"] is plain["b"]
    assert plain["a"] is not plain["c"]
