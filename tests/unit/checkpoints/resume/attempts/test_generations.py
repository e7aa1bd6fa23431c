"""References are followed to the archive that they name, once, and to no other."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Resume
from chockstone.checkpoints.errors import DamagedArchive
from chockstone.checkpoints.file_archive import write_files
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume.attempts.claims import Generation
from chockstone.checkpoints.resume.attempts.generations import FORWARD, find_generation, read_head_of
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces

_WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def _state() -> dict[str, object]:
    return {"w": np.zeros(4)}


def _saved(root: Path) -> Path:
    """The archive of a first attempt that saved once."""
    with Resume(root, attempt=0) as resume:
        resume.save(_state(), step=5).result()
    (archive,) = (root / "attempt-00000.ckpt").glob("*.tar")
    return archive


def test_a_reference_to_what_was_replaced_by_another_one_is_damaged(tmp_path: Path) -> None:
    archive = _saved(tmp_path / "run")
    with Resume(tmp_path / "run", attempt=1) as resume:
        resume.restore(_state())
    with Resume(tmp_path / "elsewhere", attempt=0, identity="run") as resume:
        resume.save(_state(), step=6).result()
    shutil.copy(tmp_path / "elsewhere/attempt-00000.ckpt/000001-0001.tar", archive)
    with Resume(tmp_path / "run", attempt=2) as resume:
        resume.restore(_state())
        assert resume.report is not None
        looked = {(each.attempt, each.verdict): each.reason for each in resume.report.looked}
    assert "which is another one now" in looked[1, Verdict.CORRUPT]
    assert (0, Verdict.VERIFIED) in looked


def test_a_reference_to_a_reference_is_damaged(tmp_path: Path) -> None:
    """So none can go in circles."""
    places = AttemptPlaces()
    place = places.open(tmp_path / "run")
    for number, target in ((1, 2), (2, 1)):
        name = Generation(target, 1).name
        metadata = {"source": {"uri": place.uri, "generation": name, "seal": "0" * 64}}
        write_files(place.store, Generation(number, 1).name, {}, kind=FORWARD, metadata=metadata, created_at=_WHEN)
    seal = read_head_of(place, "000001-0001").seal
    metadata = {"source": {"uri": place.uri, "generation": "000001-0001", "seal": seal}}
    write_files(place.store, "000003-0001", {}, kind=FORWARD, metadata=metadata, created_at=_WHEN)
    with pytest.raises(DamagedArchive, match="which is another one now"):
        find_generation(places, place, Generation(3, 1))


@pytest.mark.parametrize(
    "uri", ["s3://key:hunter2@bucket/run", "s3://bucket/run?sig=hunter2", "/a\0b", "file:///a%00b"]
)
def test_a_reference_that_leads_to_no_place_is_damaged_and_not_quoted(tmp_path: Path, uri: str) -> None:
    place = AttemptPlaces().open(tmp_path / "run")
    metadata = {"source": {"uri": uri, "generation": "000001-0001", "seal": "0" * 64}}
    write_files(place.store, "000001-0001", {}, kind=FORWARD, metadata=metadata, created_at=_WHEN)
    with pytest.raises(DamagedArchive, match="forwards to no place") as caught:
        find_generation(AttemptPlaces(), place, Generation(1, 1))
    assert "hunter2" not in str(caught.value)
