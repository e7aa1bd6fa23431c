"""A Lightning run that is killed resumes with the losses of one left alone; a damaged checkpoint costs one interval."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.checkpoints.damage import flip
from support.killed_training import ScriptForks, assert_same_losses

SCRIPT = Path(__file__).parents[4] / "support" / "integrations" / "lightning_killed.py"
EXAMPLE = Path(__file__).parents[5] / "examples" / "lightning_trainer.py"


@pytest.fixture(scope="module")
def scripts() -> Iterator[ScriptForks]:
    with ScriptForks("torch", "lightning.pytorch", "torch._dynamo") as forks:
        yield forks


def test_a_killed_run_resumes_with_the_same_losses_and_past_a_damaged_checkpoint(
    tmp_path: Path, scripts: ScriptForks
) -> None:
    alone = scripts.run(SCRIPT, str(tmp_path / "alone"))

    killed = scripts.run(SCRIPT, str(tmp_path / "run"), kill_at_step=15)
    again = scripts.run(SCRIPT, str(tmp_path / "run"), kill_at_step=19)
    newest = max((tmp_path / "run").glob("*.ckpt"), key=lambda path: int(path.stem.rpartition("=")[2]))
    flip(newest, newest.stat().st_size // 2)
    resumed = scripts.run(SCRIPT, str(tmp_path / "run"))

    assert_same_losses(alone, killed, again, resumed)
    assert again.first_step > 1
    assert resumed.first_step == int(newest.stem.rpartition("=")[2]) - 4 + 1
    assert "skipped" in resumed.errors


def test_the_example_resumes(tmp_path: Path, scripts: ScriptForks) -> None:
    options = ["--save-every=4", "--pause=0"]

    first = scripts.run(EXAMPLE, str(tmp_path), "--steps=8", *options)
    second = scripts.run(EXAMPLE, str(tmp_path), "--steps=12", *options)

    assert [line.split()[1] for line in first.lines if line.startswith("step ")] == [str(n) for n in range(1, 9)]
    assert [line.split()[1] for line in second.lines if line.startswith("step ")] == ["9", "10", "11", "12"]
