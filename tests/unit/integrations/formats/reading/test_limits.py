from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import pytest
import torch

from chockstone.checkpoints.errors import ImportRefused
from chockstone.integrations.formats.reading.limits import StateLimits


def rebuild(value: Any, source_bytes: int = 1000) -> Any:
    return StateLimits("file", source_bytes).rebuild(value, lambda leaf: leaf)


def test_a_state_is_rebuilt_with_its_container_types() -> None:
    ordered = OrderedDict(a=[1, (2,)])
    ordered._metadata = OrderedDict(version=1)  # type: ignore[attr-defined]  # as nn.Module does
    state = {"ordered": ordered, "counter": Counter("aab"), "set": {1}}

    rebuilt = rebuild(state)

    assert rebuilt == state
    assert [type(value) for value in rebuilt.values()] == [OrderedDict, Counter, set]
    assert rebuilt["ordered"]._metadata == {"version": 1}


def test_tied_tensors_count_once_and_repeated_elements_are_refused() -> None:
    tied = torch.zeros(10_000_000)

    rebuild({"a": tied, "b": [tied] * 100})

    with pytest.raises(ImportRefused, match="repeat the same elements"):
        rebuild({"a": torch.zeros(1).expand(100_000_000)})


def test_a_state_that_refers_to_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(ImportRefused, match="levels"):
        rebuild({"a": loop})
