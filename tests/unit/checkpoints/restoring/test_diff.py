from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.checkpoints import Archive, Checkpointer, open_store
from chockstone.checkpoints.errors import DigestMismatch
from chockstone.checkpoints.restoring.diff import Change, Difference, DiffExtent, compare

State = dict[str, Any]
Diff = Callable[..., Difference]


@pytest.fixture
def diff(tmp_path: Path) -> Diff:
    def saved_and_compared(before: State, after: State, **options: Any) -> Difference:
        for name, state, files in (("a", before, "before_files"), ("b", after, "after_files")):
            with Checkpointer(tmp_path) as checkpointer:
                checkpointer.save(state, name=name, files=options.pop(files, {}))
        store = open_store(tmp_path)
        with Archive(store.open("a")) as old, Archive(store.open("b")) as new:
            return compare(old, new, **options)

    return saved_and_compared


def test_equal_states_have_no_changes(diff: Diff) -> None:
    state = {"model": {"w": torch.ones(3), "b": np.zeros(2)}, "epoch": 3, "nan": float("nan")}

    difference = diff(state, state, before_files={"a.txt": b"x"}, after_files={"a.txt": b"x"})

    assert difference.is_empty
    assert difference.same == {"tensors": 2, "values": 2, "files": 1}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.bfloat16])
def test_changed_floats_are_counted_with_their_largest_difference(diff: Diff, dtype: torch.dtype) -> None:
    before = torch.tensor([1.0, 2.0, -4.0, 8.0], dtype=dtype)
    after = torch.tensor([1.0, 2.5, -1.0, 8.0], dtype=dtype)

    (change,) = diff({"model": {"w": before}}, {"model": {"w": after}}).changes

    assert (change.what, change.path, change.kind) == ("tensor", "model.w", "changed")
    assert change.extent is not None
    assert (change.extent.elements, change.extent.of_elements) == (2, 4)
    assert 2 <= change.extent.differing_bytes <= change.extent.of_bytes == before.nbytes
    assert change.extent.max_difference == 3.0


def test_a_nan_that_came_is_the_largest_difference(diff: Diff) -> None:
    before, after = np.array([1.0, 1.0, np.inf]), np.array([np.nan, 9.0, -np.inf])

    (change,) = diff({"w": before}, {"w": after}).changes

    assert change.extent is not None
    assert math.isnan(change.extent.max_difference or 0.0)


def test_types_without_floats_are_counted_only(diff: Diff) -> None:
    before = torch.tensor([1, 2, 3], dtype=torch.int32)
    after = torch.tensor([1, 2, 3 + 256], dtype=torch.int32)

    (change,) = diff({"w": before}, {"w": after}).changes

    assert change == Change("tensor", "w", "changed", "I32[3]", "I32[3]", DiffExtent(1, 3, 1, 12))


def test_added_removed_and_retyped_tensors_are_told_apart(diff: Diff) -> None:
    before = {"m": {"gone": torch.ones(1), "cast": torch.ones(2), "grown": torch.ones(2), "same": torch.ones(1)}}
    after = {
        "m": {"cast": torch.ones(2).half(), "grown": torch.ones(2, 2), "same": torch.ones(1), "new": torch.ones(1)}
    }

    difference = diff(before, after)

    assert [(change.kind, change.path, change.before, change.after) for change in difference.changes] == [
        ("removed", "m.gone", "F32[1]", None),
        ("retyped", "m.cast", "F32[2]", "F16[2]"),
        ("retyped", "m.grown", "F32[2]", "F32[2, 2]"),
        ("added", "m.new", None, "F32[1]"),
    ]
    assert difference.same["tensors"] == 1


def test_types_stored_as_bytes_are_named_as_what_they_are(diff: Diff) -> None:
    before, after = np.ones((2, 2), dtype=np.complex128), np.zeros((2, 2), dtype=np.complex128)

    (change,) = diff({"c": before}, {"c": after}).changes

    assert change.before == "numpy C128[2, 2]"
    assert change.extent is not None
    assert (change.extent.elements, change.extent.of_elements) == (4, 4)


def test_torch_and_numpy_of_equal_bytes_are_not_the_same(diff: Diff) -> None:
    (change,) = diff({"w": torch.ones(2)}, {"w": np.ones(2, dtype=np.float32)}).changes

    assert (change.kind, change.before, change.after) == ("retyped", "F32[2]", "numpy F32[2]")


def test_tying_weights_changes_nothing_that_is_restored(diff: Diff) -> None:
    tied = torch.ones(4)

    difference = diff({"m": {"a": tied, "b": tied}}, {"m": {"a": torch.ones(4), "b": torch.ones(4)}})

    assert difference.is_empty
    assert difference.same["tensors"] == 2


def test_a_change_far_into_a_large_tensor_is_found(diff: Diff) -> None:
    before = np.zeros(5_000_000, dtype=np.float32)
    after = before.copy()
    after[-1] = 0.5
    seen: list[int] = []

    (change,) = diff({"w": before}, {"w": after}, on_bytes=seen.append).changes

    assert change.extent == DiffExtent(1, 5_000_000, 1, 20_000_000, 0.5)
    assert sum(seen) == 20_000_000


def test_values_differ_by_type_and_not_only_by_number(diff: Diff) -> None:
    before = {"a": 1, "b": True, "c": [1], "d": 0.0, "e": {}, "gone": None, "same": "x"}
    after = {"a": 1.0, "b": 1, "c": (1,), "d": -0.0, "e": [], "new": "y", "same": "x"}

    difference = diff(before, after)

    assert [(change.kind, change.path, change.before, change.after) for change in difference.changes] == [
        ("changed", "a", "1", "1.0"),
        ("changed", "b", "True", "1"),
        ("retyped", "c", "[1]", "(1)"),
        ("changed", "d", "0.0", "-0.0"),
        ("retyped", "e", "dict", "[]"),
        ("removed", "gone", "None", None),
        ("added", "new", None, "'y'"),
    ]


def test_a_sequence_of_values_is_one_change(diff: Diff) -> None:
    before = {"random": (3, tuple(range(625))), "rates": [0.1], "ragged": [1, 2]}
    after = {"random": (3, tuple(range(1, 626))), "rates": [0.1], "ragged": [1]}

    difference = diff(before, after)

    assert [(change.kind, change.path) for change in difference.changes] == [
        ("changed", "random[1]"),
        ("changed", "ragged"),
    ]
    assert difference.changes[1].before == "[1, 2]"
    assert difference.same["values"] == 2


def test_files_are_compared_byte_by_byte(diff: Diff) -> None:
    before = {"gone.txt": b"1", "cut.txt": b"12", "edited.txt": b"1234", "same.txt": b"1"}
    after = {"cut.txt": b"1", "edited.txt": b"1x3y", "same.txt": b"1", "new.txt": b""}

    difference = diff({}, {}, before_files=before, after_files=after)

    assert difference.changes == (
        Change("file", "gone.txt", "removed", "1 bytes", None),
        Change("file", "cut.txt", "changed", "2 bytes", "1 bytes"),
        Change("file", "edited.txt", "changed", "4 bytes", "4 bytes", DiffExtent(2, 4, 2, 4)),
        Change("file", "new.txt", "added", None, "0 bytes"),
    )


def test_damage_is_raised_and_not_taken_for_a_change(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"w": np.ones(1000)}, name="good").result()
        content = bytearray((tmp_path / "good.tar").read_bytes())
        content[content.index(np.ones(4).tobytes())] ^= 1
        (tmp_path / "bad.tar").write_bytes(content)

        store = checkpointer.store
        with Archive(store.open("good")) as good, Archive(store.open("bad")) as bad, pytest.raises(DigestMismatch):
            compare(good, bad)


def test_torch_is_not_imported_to_compare(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        state = {"w": torch.ones(2), "dtype": torch.float32, "size": torch.Size([2]), "device": torch.device("cpu")}
        checkpointer.save(state, name="a").result()
    program = (
        "import sys\n"
        "from chockstone.checkpoints import Archive, open_store\n"
        "from chockstone.checkpoints.restoring.diff import compare\n"
        "store = open_store(sys.argv[1])\n"
        "assert compare(Archive(store.open('a')), Archive(store.open('a'))).is_empty\n"
        "assert 'torch' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
