"""Chains that are broken off, too long, or name others' places: nothing is buried, begun anew or shut by that."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Resume
from chockstone.checkpoints.errors import ResumeBlocked, StoreUnreachable
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume import resume as module
from chockstone.checkpoints.resume.attempts.candidates import MAX_CANDIDATES
from chockstone.checkpoints.resume.attempts.places import FilePlace


def _state() -> dict[str, object]:
    return {"w": np.zeros(4)}


def _save(root: Path, attempt: int, step: int) -> None:
    with Resume(root, attempt=attempt) as resume:
        resume.save(_state(), step=step).result()


def _step(resume: Resume) -> int | None:
    receipt = resume.restore(_state())
    return receipt.step if receipt else None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_after_a_restore_that_was_broken_off_nothing_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """Whoever saves once more in a ``finally`` would bury the chain under a state that was half restored."""
    _save(tmp_path, 0, 5)

    def broken_off(*_args: object, **_options: object) -> None:
        raise kind

    with Resume(tmp_path, attempt=1) as resume:
        with monkeypatch.context() as patch:
            patch.setattr(module, "restore_state", broken_off)
            with pytest.raises(kind):
                resume.restore(_state())
        with pytest.raises(ResumeBlocked, match="broken off"):
            resume._chain().begin()
        assert _step(resume) == 5, "a restore may be repeated"
        resume.save(_state(), step=6).result()


def test_a_fresh_start_may_be_acknowledged_after_a_restore_that_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_off(_self: Resume, _attempt: int) -> None:
        raise KeyboardInterrupt

    with Resume(tmp_path, attempt=0) as resume:
        with monkeypatch.context() as patch:
            patch.setattr(Resume, "_started_since", broken_off)
            with pytest.raises(KeyboardInterrupt):
                resume.restore(_state())
        resume.acknowledge_fresh_start()
        resume.save(_state(), step=1).result()


def test_more_places_than_anybody_looks_at_prove_no_fresh_start(tmp_path: Path) -> None:
    _save(tmp_path, 0, 5)
    for number in range(1, MAX_CANDIDATES + 10):
        (tmp_path / f"attempt-{number:05d}.ckpt").mkdir()
    with pytest.raises(ResumeBlocked, match="were not looked at"):
        Resume(tmp_path, attempt=MAX_CANDIDATES + 10).restore(_state())


def test_a_run_that_was_only_named_as_source_is_not_shut_by_those_who_inherit_it(tmp_path: Path) -> None:
    """It has the name of our chain, for the last part of its root is the same, and is at work."""
    ours, theirs = tmp_path / "ours/run", tmp_path / "theirs/run"
    with Resume(theirs, attempt=0) as other:
        other.save(_state(), step=3).result()
        first = Resume(ours, attempt=0, sources=[theirs], forward="off")
        assert _step(first) == 3
        with Resume(ours, attempt=1, forward="off") as second:  # nobody told it of the source
            assert _step(second) == 3
        other.save(_state(), step=4).result()


def test_lineage_is_followed_within_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        with Resume(tmp_path, attempt=number, fresh_start=True) as resume:
            resume._chain().claim()
    read, reads = FilePlace.read, []

    def slow(self: FilePlace, record: str, *limit: int) -> bytes:
        reads.append(record)
        time.sleep(0.2)
        return read(self, record, *limit)

    monkeypatch.setattr(FilePlace, "read", slow)
    monkeypatch.setattr("chockstone.checkpoints.resume.walk.candidate_scanner._MOST_FENCED", 0)
    with pytest.raises(ResumeBlocked, match="could not be judged within") as caught:
        Resume(tmp_path, attempt=12, deadline_seconds=0.5).restore(_state())
    assert caught.value.verdict == Verdict.UNREACHABLE
    assert len(reads) < 8


@pytest.mark.parametrize("method", ["put_if_absent", "delete"])
def test_a_restore_that_cannot_be_counted_is_still_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    _save(tmp_path, 0, 5)
    plain = getattr(FilePlace, method)

    def refuse(self: FilePlace, record: str, *content: bytes) -> object:
        if record.startswith("trials/"):
            raise StoreUnreachable("not now")
        return plain(self, record, *content)

    monkeypatch.setattr(FilePlace, method, refuse)
    with Resume(tmp_path, attempt=1, poison_after=3) as resume:
        assert _step(resume) == 5
        assert resume.report is not None
        assert any("counted" in warning for warning in resume.report.warnings)
