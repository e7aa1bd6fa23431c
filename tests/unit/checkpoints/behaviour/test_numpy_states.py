"""States of numpy arrays need no torch: everything that the library offers works in a process that has none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chockstone.checkpoints import Archive, Checkpointer, RandomState, Resume, Retention, load_state, verify_archive
from chockstone.checkpoints.errors import RestoreMismatch
from chockstone.checkpoints.restoring.diff import compare
from support.archives import assert_same


def numpy_state(step: int) -> dict[str, Any]:
    return {
        "model": {"w": np.full((3, 4), step, np.float32), "b": np.arange(step, step + 4, dtype=np.int16)},
        "moments": [np.float64(step), np.zeros(0), np.array([True, False])],
        "loader": {"position": step, "order": (1, 2, 3)},
    }


def test_a_loop_saves_and_restores_into_its_own_arrays(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, retention=Retention(keep_last=2)) as checkpointer:
        for step in range(1, 5):
            checkpointer.save(numpy_state(step), step=step).result()
        into = numpy_state(0)
        weights = into["model"]["w"]

        receipt = checkpointer.restore(into)
        names = [each.name for each in checkpointer.checkpoints()]

    assert receipt.step == 4
    assert into["model"]["w"] is weights
    assert_same(into, numpy_state(4))
    assert names == ["step-00000003", "step-00000004"]


async def test_the_same_beside_an_event_loop(tmp_path: Path) -> None:
    async with Checkpointer(tmp_path) as checkpointer:
        await (await checkpointer.save_async(numpy_state(1), step=1))
        into = numpy_state(0)
        await checkpointer.restore_async(into)
        await checkpointer.verify_async("step-00000001")

    assert_same(into, numpy_state(1))


def test_other_shapes_and_types_are_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"w": np.ones(3, np.float32)}, step=1).result()
        for wrong in (np.zeros(4, np.float32), np.zeros(3, np.float64)):
            with pytest.raises(RestoreMismatch):
                checkpointer.restore({"w": wrong})
            assert not wrong.any()


def test_random_generators_continue_where_they_were(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    with Checkpointer(tmp_path) as checkpointer:
        state = {"global": RandomState(), "own": generator.bit_generator.state}
        checkpointer.save(state, step=1).result()
        expected = generator.random(), float(np.random.random())

        into: dict[str, Any] = {"global": RandomState(), "own": None}
        checkpointer.restore(into)
    generator.bit_generator.state = into["own"]

    assert (generator.random(), float(np.random.random())) == expected


def test_each_attempt_resumes_where_the_last_one_stopped(tmp_path: Path) -> None:
    for attempt in range(3):
        with Resume(tmp_path / "run") as resume:
            into = numpy_state(0)
            receipt = resume.restore(into)

            assert (receipt is None) == (attempt == 0)
            assert_same(into, numpy_state(attempt))
            resume.save(numpy_state(attempt + 1), step=attempt + 1).result()


def test_archives_are_verified_compared_loaded_and_exported(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "store") as checkpointer:
        for step in (1, 2):
            checkpointer.save(numpy_state(step), step=step, files={"notes.txt": b"x"}).result()
        checkpointer.export("step-00000002", tmp_path / "exported")
    before, after = (tmp_path / "store" / f"step-0000000{step}.tar" for step in (1, 2))

    with Archive.open(before) as old, Archive.open(after) as new:
        assert verify_archive(old)
        assert {change.path for change in compare(old, new).changes} >= {"model.w", "model.b", "loader.position"}
        assert_same(load_state(new), numpy_state(2))
    assert (tmp_path / "exported" / "notes.txt").read_bytes() == b"x"


def test_none_of_it_imports_torch(tmp_path: Path) -> None:
    """The tests above, in a process in which torch cannot be imported."""
    if sys.modules.get("torch", True) is None:
        pytest.skip("this is that process")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import pytest; sys.exit(pytest.main(['-q', '-k', 'not imports_torch', *sys.argv[1:]]))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, "--basetemp", tmp_path / "child", __file__],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout[-3000:]
    assert "6 passed, 1 deselected" in done.stdout
