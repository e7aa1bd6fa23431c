"""Items of a plan become a state, whichever rank has them and however they are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint as dcp

from chockstone.checkpoints.errors import SaveFailed, UnstorableValue
from chockstone.checkpoints.format.shards import Box
from chockstone.integrations.dcp.items import (
    RankItems,
    RankTensor,
    collect_items,
    describe_leaves,
    join_tree,
    make_tree,
    single_tree,
)


def items_of(state: dict[str, Any]) -> RankItems:
    planner = dcp.DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    return collect_items(planner.create_local_plan(), planner)


def test_tensors_and_values_keep_their_paths() -> None:
    items = items_of({"model": {"w": torch.ones(2)}, "groups": [{"lr": 0.1}, {"lr": 0.2}], "step": 3})

    assert items.path("model.w") == ("model", "w")
    assert items.path("groups.1.lr") == ("groups", 1, "lr")
    assert items.values == {"groups.0.lr": 0.1, "groups.1.lr": 0.2, "step": 3}
    tree = single_tree(items)
    assert tree.skeleton["groups"] == [{"lr": 0.1}, {"lr": 0.2}]
    assert [(leaf.group, leaf.key) for leaf in tree.leaves] == [("model", "w")]


def test_boxes_that_interleave_are_cut_into_rows() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    left, right = (Box((0, 0), (3, 2)), whole[:, :2]), (Box((0, 2), (3, 2)), whole[:, 2:])
    top, bottom = (Box((0, 0), (2, 4)), whole[:2]), (Box((2, 0), (1, 4)), whole[2:])

    beside = RankTensor(torch.float32, (3, 4), [right, left]).boxes()
    stacked = RankTensor(torch.float32, (3, 4), [bottom, top]).boxes()

    assert [offsets for offsets, _ in beside.parts] == [(0,), (2,), (4,), (6,), (8,), (10,)]
    assert torch.equal(torch.cat(beside.tensors), whole.reshape(-1))
    assert [offsets for offsets, _ in stacked.parts] == [(0, 0), (2, 0)]


def test_rank_0_makes_the_state_of_all_and_the_others_join_it() -> None:
    first = items_of({"a": torch.ones(4), "step": 1})
    second = items_of({"b": {"c": torch.zeros(2, 2)}, "rng": ("MT", np.arange(3), np.float32(1.5), torch.ones(2))})
    described = [first.describe(packs_values=False), second.describe(packs_values=True)]

    tree, names = make_tree(described, first)
    other = join_tree(describe_leaves(tree, names), second)

    assert names == ["a", "b.c", None, None, None]
    assert tree.skeleton.keys() == {"a", "step", "b", "rng"}
    assert [(leaf.group, leaf.key, leaf.shape) for leaf in tree.leaves] == [
        (leaf.group, leaf.key, leaf.shape) for leaf in other.leaves
    ]
    here = [leaf.shards is None or bool(leaf.shards.boxes) for leaf in tree.leaves]
    there = [leaf.shards is None or bool(leaf.shards.boxes) for leaf in other.leaves]
    assert here == [True, False, True, True, True]
    assert there == [False, True, False, False, False]


def test_ranks_that_disagree_about_a_tensor_are_told_apart() -> None:
    first, second = items_of({"a": torch.ones(4)}), items_of({"a": torch.ones(5)})

    with pytest.raises(SaveFailed, match=r"a: rank 1 has float32\[5\]"):
        make_tree([first.describe(packs_values=False), second.describe(packs_values=True)], first)


def test_a_value_that_cannot_be_packed_is_named_by_its_whole_path() -> None:
    items = items_of({"outer": {"inner": ("fine", object())}})

    with pytest.raises(UnstorableValue, match=r"^outer\.inner\[1\]: <builtins\.object> cannot be stored"):
        items.describe(packs_values=True)
