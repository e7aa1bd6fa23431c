from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from chockstone.checkpoints.errors import DamagedArchive
from chockstone.checkpoints.format import outline as outline_module
from chockstone.checkpoints.format.outline import TENSOR, count_tensors, outline, walk
from chockstone.checkpoints.format.tree import flatten


def spelled(state: dict[str, Any]) -> dict[str, str]:
    nodes = outline(flatten(state).skeleton)
    return {path: node.text or node.kind for path, _, node in walk(nodes)}


def test_every_kind_of_value_is_spelled_as_python_does() -> None:
    state = {
        "plain": [None, True, 3, 3.0, "3"],
        "odd": (float("nan"), 2**70, 1 - 2j, b"\x00raw"),
        "sets": {"a", "b"},
        "mixed": [1, [2]],
        "empty": {},
    }

    assert spelled(state) == {
        "plain": "[None, True, 3, 3.0, '3']",
        "odd": f"(nan, {hex(2**70)}, complex(1.0, -2.0), b'\\x00raw')",
        "sets": "{'a', 'b'}",
        "mixed": "list",
        "mixed[0]": "1",
        "mixed[1]": "[2]",
        "empty": "dict",
    }


def test_keys_that_are_no_strings_stand_in_brackets() -> None:
    found = spelled({"d": {0: "zero", (1, "a"): "pair"}, "o": OrderedDict(x=1)})

    assert found == {
        "d": "dict", "d[0]": "'zero'", "d[(1, 'a')]": "'pair'", "o": "OrderedDict", "o.x": "1",
    }  # fmt: skip


def test_places_tell_apart_what_paths_do_not() -> None:
    nodes = outline(flatten({"a": {"b.c": 1, "b": {"c": 2}}}).skeleton)

    places = {place: node.text for path, place, node in walk(nodes) if path == "a.b.c"}

    assert places == {("a", ".b.c"): "1", ("a", ".b", ".c"): "2"}


def test_tensors_are_counted_and_referred_to() -> None:
    nodes = outline(flatten({"model": {"w": np.ones(2), "deep": [np.ones(3)]}}).skeleton)

    references = [node.reference for _, _, node in walk(nodes) if node.kind == TENSOR]

    assert count_tensors(nodes[0]) == 2
    assert [reference and reference.key for reference in references] == ["w", "deep.0"]


@pytest.mark.parametrize(
    "skeleton",
    [
        [],
        {"a": {"$": "no such type"}},
        {"a": {"$": "tuple", "items": 3}},
        {"a": {"$": "dict", "items": [[1]]}},
        {"a": {"$": "tensor", "group": "model"}},
        {"a": {"$": "int", "hex": "not hex"}},
        {"a": {"$": "bytes", "base64": "*"}},
        {"a": {"$": ["tuple"], "items": []}},
    ],
)
def test_a_skeleton_that_makes_no_sense_is_damage(skeleton: Any) -> None:
    with pytest.raises(DamagedArchive, match=r"state\.json does not make sense"):
        outline(skeleton)


def test_more_entries_than_memory_should_hold_are_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outline_module, "MAX_NODES", 1000)

    with pytest.raises(DamagedArchive, match="entries"):
        outline({"a": [[]] * 1000})


def test_bottomless_nesting_is_damage() -> None:
    skeleton: Any = 1
    for _ in range(900):
        skeleton = [skeleton]

    with pytest.raises(DamagedArchive, match="levels deep"):
        outline({"a": skeleton})
