"""What stands in a place and should not: never taken for nothing, and never the reason for a save that is not found."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Resume
from chockstone.checkpoints.errors import DamagedArchive, InvalidName, ResumeExhausted
from chockstone.checkpoints.file_archive import write_files
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume import recorded
from chockstone.checkpoints.resume.attempts.claims import Claim, Generation, claim_record
from chockstone.checkpoints.resume.attempts.generations import FORWARD, find, read_head_of
from chockstone.checkpoints.resume.attempts.places import MAX_RECORD_BYTES, AttemptPlaces, FilePlace
from chockstone.checkpoints.resume.retention_runner import RetentionRunner
from chockstone.checkpoints.retention.policy import Retention
from chockstone.checkpoints.stores.posix import ensure_directory

_WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def _state() -> dict[str, object]:
    return {"w": np.zeros(4)}


def _saved(root: Path) -> Path:
    """The archive of a first attempt that saved once."""
    with Resume(root, attempt=0) as resume:
        resume.save(_state(), step=5).result()
    (archive,) = (root / "attempt-00000.ckpt").glob("*.tar")
    return archive


def _dangling(archive: Path) -> None:
    archive.symlink_to(archive.with_name("nowhere"))


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo, _dangling])
def test_what_is_no_file_under_the_name_of_a_commit_is_no_fresh_start(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    archive = _saved(tmp_path / "run")
    archive.unlink()
    put(archive)
    with pytest.raises(ResumeExhausted, match="000001-0001: corrupt"):
        Resume(tmp_path / "run", attempt=1).restore(_state())


def test_an_archive_that_was_moved_and_linked_is_restored(tmp_path: Path) -> None:
    archive = _saved(tmp_path / "run")
    shutil.move(archive, tmp_path / "elsewhere.tar")
    archive.symlink_to(tmp_path / "elsewhere.tar")
    with Resume(tmp_path / "run", attempt=1) as resume:
        receipt = resume.restore(_state())
    assert receipt is not None
    assert receipt.step == 5


def test_a_number_past_the_last_is_refused_before_anything_is_saved_under_it(tmp_path: Path) -> None:
    folder = tmp_path / "run/attempt-00000.ckpt"
    folder.mkdir(parents=True)
    (folder / "999999999999-0001.tar").write_bytes(b"stray")
    resume = Resume(tmp_path / "run", attempt=0)
    resume.acknowledge_fresh_start()
    with pytest.raises(InvalidName, match="past the last generation"):
        resume.save(_state())
    assert not list(folder.glob("1*.tar"))


def test_names_that_a_listing_would_not_show_are_refused() -> None:
    assert claim_record(999_999_999) == "claims/999999999.json"
    with pytest.raises(InvalidName, match="past the last claim"):
        claim_record(1_000_000_000)
    with pytest.raises(InvalidName, match="past the last generation"):
        _ = Generation(1, 1_000_000_000).name


def test_a_claim_with_long_places_stays_one_that_can_be_read() -> None:
    given = tuple(f"s3://bucket/{'é' * 300}/{number}" for number in range(1000))
    claim = Claim("claim", "s3://bucket/run", 1, "nonce", {"chain": "run"}, given, given[::2])
    content = claim.encode()
    assert len(content) <= MAX_RECORD_BYTES
    decoded = Claim.decode(content, what="it")
    assert decoded.given
    assert decoded.given == given[: len(decoded.given)]
    assert decoded.foreign == decoded.given[::2]


def test_the_audit_of_many_long_places_can_be_read_again(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 200) / ("y" * 200)
    for number in range(400):
        (root / f"attempt-{number:05d}.ckpt").mkdir(parents=True)
    with Resume(root, attempt=400) as resume:
        assert resume.restore(_state()) is None
    assert (root / "attempt-00400.ckpt/resume.json").stat().st_size > MAX_RECORD_BYTES
    assert len(recorded(root).looked) == 401


def test_a_record_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "run")
    (place.folder / "resume.json").mkdir(parents=True)
    with pytest.raises(Exception, match=r"resume\.json"):
        place.put("resume.json", b"{}")
    assert not os.listdir(place.folder / ".partial")


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
        find(places, place, Generation(3, 1))


@pytest.mark.parametrize(
    "uri", ["s3://key:hunter2@bucket/run", "s3://bucket/run?sig=hunter2", "/a\0b", "file:///a%00b"]
)
def test_a_reference_that_leads_to_no_place_is_damaged_and_not_quoted(tmp_path: Path, uri: str) -> None:
    place = AttemptPlaces().open(tmp_path / "run")
    metadata = {"source": {"uri": uri, "generation": "000001-0001", "seal": "0" * 64}}
    write_files(place.store, "000001-0001", {}, kind=FORWARD, metadata=metadata, created_at=_WHEN)
    with pytest.raises(DamagedArchive, match="forwards to no place") as caught:
        find(AttemptPlaces(), place, Generation(1, 1))
    assert "hunter2" not in str(caught.value)


def test_directories_below_a_dangling_link_are_refused_plainly(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "unmounted/disk")
    with pytest.raises(FileNotFoundError):
        ensure_directory(tmp_path / "link/run/attempt")
    ensure_directory(tmp_path / "a/b/c")
    ensure_directory(tmp_path / "a/b/c")
    assert (tmp_path / "a/b/c").is_dir()


def test_whoever_was_superseded_removes_nothing_any_more(tmp_path: Path) -> None:
    """The later attempt may be going by what the policy of the earlier one would remove."""
    with Resume(tmp_path / "run", attempt=0, retention=Retention(keep_last=None)) as resume:
        for step in range(1, 5):
            resume.save(_state(), step=step).result()
        Resume(tmp_path / "run", attempt=1).resolve()
        assert RetentionRunner(resume._chain(), Retention(keep_last=2)).tidy() == []
    assert len(list((tmp_path / "run/attempt-00000.ckpt").glob("*.tar"))) == 4
