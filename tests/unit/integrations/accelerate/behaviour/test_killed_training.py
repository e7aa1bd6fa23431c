"""A killed Accelerate loop resumes with the losses of one left alone; a damaged checkpoint costs one interval."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.killed_training import ScriptForks, assert_same_losses, flip_bit, newest_archive

SCRIPT = Path(__file__).parents[4] / "support" / "integrations" / "accelerate_killed.py"
EXAMPLE = Path(__file__).parents[5] / "examples" / "accelerate_loop.py"


@pytest.fixture(scope="module")
def scripts() -> Iterator[ScriptForks]:
    with ScriptForks("torch", "accelerate", "torch._dynamo") as forks:
        yield forks


def test_a_killed_loop_resumes_with_the_same_losses_and_past_a_damaged_checkpoint(
    tmp_path: Path, scripts: ScriptForks
) -> None:
    alone = scripts.run(SCRIPT, str(tmp_path / "alone"))

    killed = scripts.run(SCRIPT, str(tmp_path / "run"), kill_at_step=15)
    again = scripts.run(SCRIPT, str(tmp_path / "run"), kill_at_step=19)
    newest = newest_archive(tmp_path / "run" / "checkpoints")
    flip_bit(newest)
    resumed = scripts.run(SCRIPT, str(tmp_path / "run"))

    assert_same_losses(alone, killed, again, resumed)
    assert again.first_step > 1
    assert "steps lost  1" in resumed.errors  # counted in checkpoints


def test_the_example_resumes(tmp_path: Path, scripts: ScriptForks) -> None:
    options = ["--save-every=4", "--pause=0"]

    first = scripts.run(EXAMPLE, str(tmp_path), "--steps=8", *options)
    second = scripts.run(EXAMPLE, str(tmp_path), "--steps=12", *options)

    assert [line.split()[1] for line in first.lines if line.startswith("step ")] == [str(n) for n in range(1, 9)]
    assert [line.split()[1] for line in second.lines if line.startswith("step ")] == ["9", "10", "11", "12"]
