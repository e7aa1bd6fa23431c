"""What a user may get wrong: refused at once, or said aloud, and never a silent beginning at zero."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chockstone.checkpoints import Checkpointer, Resume
from chockstone.checkpoints.errors import InvalidName, ResumeError
from chockstone.checkpoints.resume.attempts.roots import MAX_ATTEMPT, number_attempt


def saved(root: Path, step: int = 1) -> None:
    with Resume(root) as resume:
        resume.restore({"a": np.zeros(2)})
        resume.save({"a": np.full(2, float(step))}, step=step)


@pytest.mark.parametrize(
    "options",
    [
        {"attempt": -1},
        {"attempt": MAX_ATTEMPT + 1},
        {"attempt": "3"},
        {"forward": "link"},
        {"on_unreadable": "Stop"},
        {"poison_after": 0},
        {"deadline_seconds": 0},
        {"identity": ""},
    ],
    ids=str,
)
def test_what_would_break_the_chain_is_refused_at_once(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Resume(tmp_path / "run", **options)
    assert not list(tmp_path.iterdir())


def test_there_is_no_attempt_that_later_ones_would_not_find() -> None:
    assert number_attempt([MAX_ATTEMPT - 1], None).attempt == MAX_ATTEMPT
    with pytest.raises(ResumeError, match="another root"):
        number_attempt([MAX_ATTEMPT], None)


@pytest.mark.parametrize("is_source", [False, True], ids=["root", "source"])
def test_the_directory_of_a_checkpointer_is_not_taken_for_an_empty_chain(tmp_path: Path, is_source: bool) -> None:
    with Checkpointer(tmp_path / "old") as checkpointer:
        checkpointer.save({"a": np.ones(2)}, step=7)
    resume = Resume(tmp_path / "new", sources=tmp_path / "old") if is_source else Resume(tmp_path / "old")
    for _ in range(2):
        with pytest.raises(InvalidName, match=r"holds checkpoints of a Checkpointer.*restore\(state\)"):
            resume.restore({"a": np.zeros(2)})
    with pytest.raises(InvalidName):
        resume.save({"a": np.zeros(2)}, step=1)
    resume.close()


def test_a_root_that_was_renamed_is_not_passed_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path / "run-7")
    shutil.move(tmp_path / "run-7", tmp_path / "run-8")
    with caplog.at_level(logging.WARNING), Resume(tmp_path / "run-8") as resume:
        assert resume.restore({"a": np.zeros(2)}) is None
        assert resume.report is not None
        assert any("identity=" in note and "run-7" in note for note in resume.report.notes)
    assert "identity=" in caplog.text
    with Resume(tmp_path / "run-8", identity="run-7") as resume:
        assert resume.restore({"a": np.zeros(2)}) is not None


def test_sources_that_are_not_there_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Resume(tmp_path / "new", sources=[tmp_path / "mistyped"]) as resume:
        assert resume.restore({"a": np.zeros(2)}) is None
    assert "no source has ever held a checkpoint" in caplog.text
    assert "mistyped" in caplog.text


def test_a_first_start_has_nothing_to_warn_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Resume(tmp_path / "new") as resume:
        assert resume.restore({"a": np.zeros(2)}) is None
    assert not caplog.records


@pytest.mark.parametrize("ending", ["", "/attempt-00000", "/attempt-00000.ckpt"])
def test_a_source_is_a_root_an_attempt_or_its_folder(tmp_path: Path, ending: str) -> None:
    saved(tmp_path / "old", step=5)
    with Resume(tmp_path / "new", sources=f"{tmp_path}/old{ending}") as resume:
        resume.restore({"a": np.zeros(2)})
        assert resume.step == 5


def test_a_save_does_not_bury_what_nobody_restored(tmp_path: Path) -> None:
    with Resume(tmp_path / "run") as resume:
        resume.save({"a": np.ones(2)}, step=100)  # a first start has nothing to restore

    resume = Resume(tmp_path / "run")
    resume.resolve()
    for _ in range(2):
        with pytest.raises(ResumeError, match=r"step 100, at .* that was not restored.*call restore\(\) first"):
            resume.save({"a": np.zeros(2)}, step=1)
    resume.restore({"a": np.zeros(2)})
    resume.save({"a": np.ones(2)}, step=101).result()
    resume.close()

    with Resume(tmp_path / "run", fresh_start=True) as resume:
        resume.save({"a": np.zeros(2)}, step=1)
