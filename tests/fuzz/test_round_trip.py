from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from states import Case, arrays, cases, tensors

from chockstone.checkpoints import Checkpointer
from support.archives import assert_same

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "150"))  # per test; raise it to go hunting
QUICK = settings(derandomize=EXAMPLES == 150, deadline=None, max_examples=EXAMPLES, database=None)


@pytest.fixture(scope="module")
def checkpointer() -> Iterator[Checkpointer]:
    """One for all examples: whatever it keeps from save to save must not show in the next."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # thousands of fsyncs
    with tempfile.TemporaryDirectory(dir=memory) as root, Checkpointer(root) as opened:
        yield opened


def save_and_load(checkpointer: Checkpointer, state: dict[str, Any]) -> dict[str, Any]:
    checkpointer.save(state, name="it", overwrite=True).result()
    return checkpointer.load(name="it", verify="full")


def same_objects(found: Any, wanted: Any, pool: list[Any], seen: dict[int, set[int]]) -> None:
    """Note which new object stands where each of the pool stood."""
    if any(wanted is item for item in pool):
        seen.setdefault(id(wanted), set()).add(id(found))
    elif isinstance(wanted, dict):
        for item, wanted_item in zip(found.values(), wanted.values(), strict=True):
            same_objects(item, wanted_item, pool, seen)
    elif isinstance(wanted, list | tuple):
        for item, wanted_item in zip(found, wanted, strict=True):
            same_objects(item, wanted_item, pool, seen)


@QUICK
@given(case=cases())
def test_any_state_comes_back_to_the_bit(checkpointer: Checkpointer, case: Case) -> None:

    found = save_and_load(checkpointer, case.state)

    assert_same(found, case.state)


@QUICK
@given(case=cases())
def test_tensors_that_were_one_object_are_one_object_again(checkpointer: Checkpointer, case: Case) -> None:
    pool = [item for item in case.pool if isinstance(item, torch.Tensor | np.ndarray) and 0 not in item.shape]
    seen: dict[int, set[int]] = {}

    found = save_and_load(checkpointer, case.state)

    same_objects(found, case.state, pool, seen)
    assert all(len(objects) == 1 for objects in seen.values())


@QUICK
@given(values=st.dictionaries(st.sampled_from("abcdef"), tensors() | arrays(), min_size=1))
def test_a_restore_in_place_fills_the_very_tensors_it_is_given(
    checkpointer: Checkpointer, values: dict[str, Any]
) -> None:
    state = {"model": values}
    checkpointer.save(state, name="it", overwrite=True).result()
    live = {key: blank(value) for key, value in values.items()}
    into = {"model": dict(live)}

    receipt = checkpointer.restore(into, name="it")

    assert receipt.complete
    assert_same(into["model"], values)
    for key, value in live.items():
        if not isinstance(value, np.generic):
            assert into["model"][key] is value


@QUICK
@given(case=cases())
def test_a_save_changes_nothing_in_the_state(checkpointer: Checkpointer, case: Case) -> None:
    before = copy.deepcopy(case.state)

    checkpointer.save(case.state, name="it", overwrite=True).result()

    assert_same(case.state, before)


def blank(value: Any) -> Any:
    """Something of the same type and shape to restore into, in whatever strides."""
    if isinstance(value, np.generic):
        return type(value)(0)
    if isinstance(value, np.ndarray):
        return np.zeros(value.shape, dtype=value.dtype)
    filled = torch.full((value.numel() * value.element_size(),), 0, dtype=torch.uint8)
    fresh = filled.view(value.dtype).reshape(value.shape)
    return fresh.mT.contiguous().mT if fresh.dim() > 1 and fresh.numel() else fresh
