"""A real Ray Train run of two workers that loses a worker; see ``support.integrations.ray_training``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support.integrations.need_extra import need_extra

need_extra("ray-train")

from chockstone.checkpoints import Checkpointer  # noqa: E402
from chockstone.checkpoints.errors import CheckpointError  # noqa: E402
from chockstone.integrations.ray_train.checkpointer import _numbers, _plain, _refuse_separate_workers  # noqa: E402

EXAMPLE = Path(__file__).parents[4] / "examples" / "ray_train.py"


def run_program(*program: str) -> str:
    """Run a program that starts Ray, in the folder of the tests; what it prints."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temporary:  # names are short there
        environment = os.environ | {
            "RAY_AUTH_MODE": "disabled",
            "RAY_TMPDIR": temporary,
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "200",  # two workers import torch
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        done = subprocess.run(
            [sys.executable, *program],
            cwd=Path(__file__).parents[3],
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
        )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The place of the run, after it."""
    place = tmp_path_factory.mktemp("ray")
    run_program("-m", "support.integrations.ray_training", str(place))
    return place


def events(place: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / f"rank-{rank}.jsonl").read_text().splitlines()]


def losses(place: Path, rank: int, attempt: int) -> dict[int, str]:
    return {each["step"]: each["loss"] for each in events(place, rank) if each["attempt"] == attempt and "step" in each}


def starts(place: Path, rank: int) -> list[tuple[int | None, list[str]]]:
    return [(each["restored"], each["skipped"]) for each in events(place, rank) if "restored" in each]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_group_that_lost_a_worker_continues_with_the_same_losses(run: Path, rank: int) -> None:
    undisturbed, losses_after = losses(run, rank, 1), losses(run, rank, 2)

    assert list(losses_after) == [7, 8, 9, 10]
    assert {step: losses_after[step] for step in (7, 8, 9)} == {step: undisturbed[step] for step in (7, 8, 9)}


def test_a_flipped_bit_costs_one_interval_and_what_ray_never_got_counts(run: Path) -> None:
    (first, _), (restored, skipped) = starts(run, 0)

    assert (first, restored) == (None, 6)
    assert [name.split("-")[0] for name in skipped] == ["checkpoint_00000008"]


def test_ray_knows_every_checkpoint_that_is_there(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    there = sorted(path.name for path in (run / "runs" / "run").glob("checkpoint_0*"))

    assert result["step"] == 10
    assert result["metrics"]["words"] == "kept"
    assert there == result["kept"]
    assert [name.split("-")[0] for name in there] == ["checkpoint_00000008", "checkpoint_00000010"]


def test_no_report_waits_for_a_save(run: Path) -> None:
    """``Gate`` holds the first save until the next report has returned, and would have ended the run."""
    assert list(losses(run, 0, 1)) == list(range(1, 10))


def test_numbers_among_the_metrics_are_in_the_archive(run: Path) -> None:
    newest = Checkpointer(run / "runs" / "run").checkpoints()[-1]

    assert newest.manifest is not None
    assert set(newest.manifest.metrics) == {"loss"}
    assert newest.manifest.metadata["ray_metrics"]["words"] == "kept"


def test_metrics_that_are_no_json_keep_their_numbers() -> None:
    metrics = {"loss": 0.5, "table": object(), "worst": float("inf")}

    assert _numbers(metrics) == {"loss": 0.5, "worst": float("inf")}
    assert _plain(metrics) == {"loss": 0.5}


def test_workers_without_a_process_group_are_refused() -> None:
    with pytest.raises(CheckpointError, match="the 2 workers of this group have no torch.distributed process group"):
        _refuse_separate_workers(2)
    _refuse_separate_workers(1)


def test_the_example_saves_its_last_step(tmp_path: Path) -> None:
    said = run_program(str(EXAMPLE), str(tmp_path), "--workers=1", "--steps=3", "--save-every=2", "--pause=0")

    assert "saved step 3" in said
    assert len(list((tmp_path / "example").glob("checkpoint_*/state.tar"))) == 2
