"""Trainings that are killed with SIGKILL: they resume with the losses of one left alone, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.integrations import hf_trainers
from support.killed_training import ScriptForks, assert_same_losses, flip_bit, newest_archive

SCRIPT = Path(hf_trainers.__file__)


@pytest.fixture(scope="module")
def scripts() -> Iterator[ScriptForks]:
    with ScriptForks("support.integrations.hf_trainers", "transformers.models.llama.modeling_llama") as forks:
        yield forks


def test_a_killed_training_resumes_with_the_same_losses_even_past_a_flipped_bit(
    scripts: ScriptForks, tmp_path: Path
) -> None:
    alone = scripts.run(SCRIPT, str(tmp_path / "alone"))
    first = scripts.run(SCRIPT, str(tmp_path / "run"), kill_at_step=6)  # while step 4 may still be written
    second = scripts.run(SCRIPT, str(tmp_path / "run"), kill_at_step=9)
    newest = newest_archive(tmp_path / "run" / "store")
    flip_bit(newest)
    last = scripts.run(SCRIPT, str(tmp_path / "run"))

    assert_same_losses(alone, first, second, last)
    assert alone.lines[-1] == "resumed None skipped 0"
    assert second.first_step in (3, 5)
    assert last.lines[-1] == f"resumed {int(newest.stem[-8:]) - 2} skipped 1"


def test_a_killed_training_of_an_adapter_resumes_with_the_same_losses(scripts: ScriptForks, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    alone = scripts.run(SCRIPT, str(tmp_path / "alone"), "--kind=lora")
    killed = scripts.run(SCRIPT, str(tmp_path / "run"), "--kind=lora", kill_at_step=7)
    resumed = scripts.run(SCRIPT, str(tmp_path / "run"), "--kind=lora")

    assert_same_losses(alone, killed, resumed)
    assert resumed.first_step > 1


def test_a_killed_sft_trainer_of_trl_resumes_with_the_same_losses(scripts: ScriptForks, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    alone = scripts.run(SCRIPT, str(tmp_path / "alone"), "--kind=sft")
    killed = scripts.run(SCRIPT, str(tmp_path / "run"), "--kind=sft", kill_at_step=7)
    resumed = scripts.run(SCRIPT, str(tmp_path / "run"), "--kind=sft")

    assert_same_losses(alone, killed, resumed)
    assert resumed.first_step > 1
