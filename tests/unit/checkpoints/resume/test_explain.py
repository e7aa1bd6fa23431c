from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chockstone.checkpoints import Resume
from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive, InvalidName
from chockstone.checkpoints.resume import Verdict, explain, recorded
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.checkpoints.resume.walk.rules import ResumeRules


def train(root: Path, attempt: int, *steps: int, **options: Any) -> None:
    with Resume(root, attempt=attempt, forward="off", **options) as resume:
        resume.restore({"w": np.zeros(8)})
        for step in steps:
            resume.save({"w": np.full(8, float(step))}, step=step).result()


def test_it_goes_by_the_rules_of_the_newest_attempt(tmp_path: Path) -> None:
    train(tmp_path / "run", 0, 100, on_unreadable="older", poison_after=3)

    settings = explain(tmp_path / "run").settings

    assert (settings["on_unreadable"], settings["poison_after"]) == ("older", 3)


@pytest.mark.parametrize(
    "settings",
    [{}, {"stock": 5}, {"poison_after": True}, {"poison_after": -1}, {"on_unreadable": []}, {"fresh_start": True}],
)
def test_rules_that_are_none_are_as_they_are_by_default(settings: dict[str, Any], tmp_path: Path) -> None:
    train(tmp_path / "run", 0, 100)
    record = tmp_path / "run/attempt-00000.ckpt/resume.json"
    record.write_text(json.dumps(json.loads(record.read_bytes()) | {"settings": settings}))

    report = explain(tmp_path / "run")

    assert report.outcome == "resolved"
    assert (report.settings["stock"], report.settings["poison_after"]) == (None, None)


def test_native_files_of_lineage_are_seen_where_the_attempt_reckoned_with_them(tmp_path: Path) -> None:
    flyte_native, own = tmp_path / "a/ckpt", tmp_path / "b/ckpt"
    flyte_native.mkdir(parents=True)
    (flyte_native / "model.pt").write_bytes(b"x")
    chain = Chain(
        AttemptPlaces(),
        str(own),
        identity={"run": "r1"},
        attempt=1,
        candidates=[Candidate(str(flyte_native), Origin.PLATFORM)],
        rules=ResumeRules(flyte_native="tree"),
    )
    chain.resolve()

    report = explain(own)

    assert report.choice is not None
    assert (report.choice.uri, report.choice.verdict) == (flyte_native.as_uri(), Verdict.UNVERIFIED)
    assert report.identity == {"run": "r1"}


def test_an_older_attempt_tells_where_the_newest_died_before_its_claim(tmp_path: Path) -> None:
    train(tmp_path / "run", 0, 100, identity="other")
    (tmp_path / "run/attempt-00001.ckpt").mkdir()

    report = explain(tmp_path / "run")

    assert (report.identity, report.attempt) == ({"chain": "other"}, 2)
    assert report.choice is not None


def test_a_place_that_was_shut_says_by_whom(tmp_path: Path) -> None:
    train(tmp_path / "run", 0, 100)
    train(tmp_path / "run", 1)

    report = explain(tmp_path / "run/attempt-00000")

    [note] = report.notes
    assert str(tmp_path / "run/attempt-00001") in note


def test_what_was_recorded_is_what_the_attempt_found(tmp_path: Path) -> None:
    train(tmp_path / "run", 0, 100)
    with Resume(tmp_path / "run", attempt=1, forward="off") as resume:
        resume.restore({"w": np.zeros(8)})

        assert recorded(tmp_path / "run") == resume.report
        assert recorded(f"{resume.place}.ckpt/") == resume.report


def test_without_a_record_there_is_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match="has recorded"):
        recorded(tmp_path / "run")


def test_a_damaged_record_is_not_passed_for_an_older_one(tmp_path: Path) -> None:
    train(tmp_path / "run", 0, 100)
    train(tmp_path / "run", 1)
    (tmp_path / "run/attempt-00001.ckpt/resume.json").write_text("{")

    with pytest.raises(DamagedArchive, match="resume.json"):
        recorded(tmp_path / "run")


@pytest.mark.parametrize("uri", ["", "/", "s3://bucket", "s3://bucket/x?key=secret", "ftp://host/x", "/.ckpt"])
def test_what_is_no_place_is_refused(uri: str) -> None:
    with pytest.raises(InvalidName):
        explain(uri)
