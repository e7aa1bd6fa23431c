"""Forwards: the next attempt finds what was restored in the place of this one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Resume
from chockstone.checkpoints.resume.attempts.claims import Generation
from chockstone.checkpoints.resume.attempts.generations import FORWARD, read_head_of
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.forward import Forward, Mode

NAME = Generation(1, 1).name


def state(value: float = 0.0) -> dict[str, object]:
    return {"w": np.full(4, float(value))}


def save(root: Path, attempt: int, step: int) -> None:
    with Resume(root, attempt=attempt) as resume:
        resume.save(state(step), step=step).result()


def note_of(resume: Resume) -> str:
    assert resume.report is not None
    return resume.report.notes[-1]


@pytest.mark.parametrize(("mode", "kind", "how"), [("reference", FORWARD, "by reference"), ("copy", None, "hard link")])
def test_what_was_restored_is_the_first_generation_of_the_attempt(
    tmp_path: Path, mode: Mode, kind: str | None, how: str
) -> None:
    save(tmp_path / "run", 0, step=5)

    with Resume(tmp_path / "run", attempt=1, forward=mode) as resume:
        resume.restore(state())

    head = read_head_of(AttemptPlaces().open(tmp_path / "run/attempt-00001"), NAME)
    assert head.manifest.step == 5
    assert (head.manifest.kind == FORWARD) is (kind == FORWARD)
    assert how in note_of(resume)


def test_nothing_is_forwarded_if_it_is_off_or_in_our_own_place(tmp_path: Path) -> None:
    save(tmp_path / "run", 0, step=5)

    with Resume(tmp_path / "run", attempt=1, forward="off") as resume:
        resume.restore(state())
        assert Forward.begin(resume._chain(), "off") is None
    with Resume(tmp_path / "run", attempt=0) as restarted:
        chain = restarted._chain()
        assert chain.attempt == 2, "attempt 1 is there"

    assert not list((tmp_path / "run/attempt-00001.ckpt").glob("*.tar"))


def test_a_save_that_came_first_is_not_replaced(tmp_path: Path) -> None:
    save(tmp_path / "run", 0, step=5)
    with Resume(tmp_path / "run", attempt=1, forward="off") as resume:
        resume.restore(state())
        resume.save(state(6), step=6).result()
        forward = Forward.begin(resume._chain(), "reference")
        assert forward is not None
        forward.wait()

    assert "not forwarded" in note_of(resume)
    assert read_head_of(AttemptPlaces().open(tmp_path / "run/attempt-00001"), NAME).manifest.step == 6
