"""`explain` of a Checkpointer's directory: what ``Checkpointer.restore`` restores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import DamagedArchive
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume import explain
from chockstone.checkpoints.resume.checkpointer_directory import explain_checkpointer


def save(root: Path, *steps: int, prefix: str = "") -> None:
    with Checkpointer(root, prefix=prefix) as checkpointer:
        for step in steps:
            checkpointer.save({"w": np.full(4, step)}, step=step).result()


def restored_step(root: Path) -> int | None:
    with Checkpointer(root) as checkpointer:
        return checkpointer.restore({"w": np.zeros(4, dtype=np.int64)}).step


def cut(root: Path, name: str) -> None:
    file = root / f"{name}.tar"
    file.chmod(0o600)
    file.write_bytes(file.read_bytes()[:5000])


@pytest.mark.parametrize("prefix", ["", "run-1"])
def test_the_newest_archive_would_be_restored_as_restore_does(tmp_path: Path, prefix: str) -> None:
    save(tmp_path, 100, 200, prefix=prefix)

    report = explain(tmp_path)

    assert (report.outcome, report.choice and report.choice.verdict) == ("resolved", Verdict.VERIFIED)
    assert report.choice is not None
    assert report.choice.step == restored_step(tmp_path) == 200
    assert report.choice.generation == f"{prefix}/step-00000200".lstrip("/")
    assert [each.step for each in report.looked] == [200, 100]
    assert "a Checkpointer wrote these archives" in report.notes[0]


def test_a_damaged_archive_is_named_and_an_older_one_chosen(tmp_path: Path) -> None:
    save(tmp_path, 100, 200)
    cut(tmp_path, "step-00000200")

    report = explain(tmp_path)

    assert report.choice is not None
    assert report.choice.step == restored_step(tmp_path) == 100
    assert (report.looked[0].generation, report.looked[0].verdict) == ("step-00000200", Verdict.CORRUPT)
    assert report.steps_lost is None, "the step of a damaged archive is not known"


def test_only_damaged_archives_are_no_fresh_start(tmp_path: Path) -> None:
    save(tmp_path, 100)
    cut(tmp_path, "step-00000100")

    assert explain(tmp_path).outcome == "exhausted"
    with pytest.raises(DamagedArchive):
        restored_step(tmp_path)


def test_several_prefixes_are_listed(tmp_path: Path) -> None:
    save(tmp_path, 100, prefix="run-1")
    save(tmp_path, 50, prefix="run-2")

    report = explain(tmp_path)

    assert report.choice is not None
    assert report.choice.step == restored_step(tmp_path) == 50, "the newest by time"
    assert "2 prefixes: 'run-1', 'run-2'" in report.notes[2]
    assert explain(tmp_path / "run-1").choice is not None


def test_an_empty_or_missing_directory_is_a_fresh_start(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("x")

    assert explain_checkpointer(str(tmp_path / "other")) is None
    assert [explain(tmp_path / name).outcome for name in ("empty", "missing")] == ["fresh", "fresh"]
