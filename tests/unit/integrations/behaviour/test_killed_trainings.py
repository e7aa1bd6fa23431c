"""Trainings that are killed with SIGKILL resume with the losses of one left alone, to the bit.

A flipped bit in the newest checkpoint costs one interval. One process imports all hosts, and each training is a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from support.checkpoints.damage import flip
from support.killed_training import ScriptForks, assert_same_losses, flip_bit, newest_archive

SCRIPTS = Path(__file__).parents[3] / "support" / "integrations"
EXAMPLES = Path(__file__).parents[4] / "examples"
SLOW = {
    "accelerate": ("torch", "torch._dynamo", "accelerate"),
    "lightning": ("lightning.pytorch",),
    "transformers": ("support.integrations.hf_trainers", "transformers.models.llama.modeling_llama"),
    "peft": ("peft",),
    "trl": ("datasets", "trl.trainer.sft_trainer"),
}


@pytest.fixture(scope="module")
def scripts() -> Iterator[ScriptForks]:
    with ScriptForks(*(name for host, names in SLOW.items() if find_spec(host) for name in names)) as forks:
        yield forks


def damage_archive(store: Path) -> None:
    """Flip a bit in the newest archive of a store."""
    flip_bit(newest_archive(store))


def damage_lightning(folder: Path) -> None:
    newest = max(folder.glob("*.ckpt"), key=lambda path: int(path.stem.rpartition("=")[2]))
    flip(newest, newest.stat().st_size // 2)


class Case(NamedTuple):
    """A script that is killed at a step, and how its newest checkpoint is damaged."""

    package: str
    script: str
    kill_at_step: int
    says: str  # what it says about the checkpoint that it skips
    damage: Callable[[Path], None]
    folder: str = "."


CASES = {
    "accelerate": Case("accelerate", "accelerate_killed.py", 19, "steps lost  1", damage_archive, "checkpoints"),
    "lightning": Case("lightning", "lightning_killed.py", 19, "skipped", damage_lightning),
    "hf trainer": Case("transformers", "hf_trainers.py", 7, "skipped 1", damage_archive, "store"),
}


@pytest.mark.parametrize("host", CASES)
def test_a_killed_training_resumes_with_the_same_losses_past_a_damaged_checkpoint(
    scripts: ScriptForks, tmp_path: Path, host: str
) -> None:
    case = CASES[host]
    pytest.importorskip(case.package)
    alone = scripts.run(SCRIPTS / case.script, str(tmp_path / "alone"))

    killed = scripts.run(SCRIPTS / case.script, str(tmp_path / "run"), kill_at_step=case.kill_at_step)
    case.damage(tmp_path / "run" / case.folder)
    resumed = scripts.run(SCRIPTS / case.script, str(tmp_path / "run"))

    assert_same_losses(alone, killed, resumed)
    assert 1 < resumed.first_step < case.kill_at_step
    assert case.says in resumed.errors + "".join(resumed.lines)


@pytest.mark.parametrize(("kind", "package"), [("lora", "peft"), ("sft", "trl")])
def test_a_killed_training_of_an_adapter_or_of_trl_resumes_with_the_same_losses(
    scripts: ScriptForks, tmp_path: Path, kind: str, package: str
) -> None:
    pytest.importorskip(package)
    script, options = SCRIPTS / "hf_trainers.py", [f"--kind={kind}", "--steps=6"]
    alone = scripts.run(script, str(tmp_path / "alone"), *options)
    killed = scripts.run(script, str(tmp_path / "run"), *options, kill_at_step=5)
    resumed = scripts.run(script, str(tmp_path / "run"), *options)

    assert_same_losses(alone, killed, resumed)
    assert resumed.first_step > 1


@pytest.mark.parametrize(
    ("example", "package"), [("accelerate_loop.py", "accelerate"), ("lightning_trainer.py", "lightning")]
)
def test_the_examples_resume(scripts: ScriptForks, tmp_path: Path, example: str, package: str) -> None:
    pytest.importorskip(package)
    options = ["--save-every=2", "--pause=0"]

    first = scripts.run(EXAMPLES / example, str(tmp_path), "--steps=2", *options)
    second = scripts.run(EXAMPLES / example, str(tmp_path), "--steps=4", *options)

    assert [line.split()[1] for line in first.lines if line.startswith("step ")] == ["1", "2"]
    assert [line.split()[1] for line in second.lines if line.startswith("step ")] == ["3", "4"]
