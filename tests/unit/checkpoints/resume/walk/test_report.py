"""The report of a resume is read back from JSON, whatever its size, and refuses what is not one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Resume
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume import recorded
from chockstone.checkpoints.resume.attempts.places import MAX_RECORD_BYTES
from chockstone.checkpoints.resume.walk.report import CandidateReport, ResumeReport


def _state() -> dict[str, object]:
    return {"w": np.zeros(4)}


def test_the_audit_of_many_long_places_can_be_read_again(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 200) / ("y" * 200)
    for number in range(400):
        (root / f"attempt-{number:05d}.ckpt").mkdir(parents=True)
    with Resume(root, attempt=400) as resume:
        assert resume.restore(_state()) is None
    assert (root / "attempt-00400.ckpt/resume.json").stat().st_size > MAX_RECORD_BYTES
    assert len(recorded(root).looked) == 401


def _report() -> ResumeReport:
    chosen = CandidateReport("s3://b/a1", "derived", Verdict.SUPERSEDED, attempt=1, generation="000002-0001", step=7)
    looked = (CandidateReport("s3://b/a2", "own", Verdict.ABSENT), chosen)
    return ResumeReport("s3://b/a2", 2, {"chain": "run"}, "restored", looked, chosen, steps_lost=0, requests=3)


def test_a_report_is_the_same_after_json() -> None:
    assert ResumeReport.from_json(_report().as_json()) == _report()


def test_the_value_of_a_superseded_commit_is_the_word_that_earlier_versions_wrote() -> None:
    assert json.loads(_report().as_json())["choice"]["verdict"] == "void"


def test_the_log_line_names_the_choice_and_the_cost() -> None:
    line = _report().line()

    assert "outcome=restored" in line
    assert "from=s3://b/a1 generation=000002-0001 step=7 steps_lost=0" in line
    assert "requests=3" in line


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"looked": 3}'])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        ResumeReport.from_json(text)
