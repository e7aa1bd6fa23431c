"""F17 to F27: what cannot be read now. Nothing older stands in for it, and nothing starts at zero."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
from harness import (
    BROKEN,
    BUSY,
    DENIED,
    EXPIRED,
    HANG,
    MANY,
    RESET,
    RETRY_POLICY,
    SHORT,
    FileWorld,
    S3World,
    World,
    refused,
    state,
    step_of,
)

from chockstone.checkpoints.errors import ResumeBlocked, ResumeError
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.checkpoints.resume.walk.rules import ResumeRules
from chockstone.checkpoints.stores.bucket import RetryPolicy
from support.loopback_s3 import Fault

IMPATIENT = RetryPolicy(attempts=2, connect_seconds=1.0, silence_seconds=0.5)
LIST, GET = "attempt-00001.ckpt%2F", "attempt-00001.ckpt/0"  # what a target holds when A1 is listed, when it is read


@pytest.fixture
def two(world: World) -> World:
    """A0 at 10 and A1 at 20, both good."""
    world.attempt(0, 10)
    world.attempt(1, 20)
    return world


@pytest.fixture
def two_on_s3(s3_world: S3World) -> S3World:
    s3_world.attempt(0, 10)
    s3_world.attempt(1, 20)
    return s3_world


def is_blocked(world: World, verdict: Verdict, **options: Any) -> ResumeBlocked:
    """A restore is refused for that reason, A0 is not looked into, and once it is healed A1 comes back."""
    error = refused(world, ResumeBlocked, **options)
    assert isinstance(error, ResumeBlocked)
    assert error.verdict == verdict, str(error)
    said = [each for each in world.verdicts(error.report) if "attempt-00000" in each[0]] if error.report else []
    assert not said, said
    world.heal()
    assert world.restore()[0] == 20, "all of it is still there"
    return error


def test_f17_what_is_denied_stops(two: World) -> None:
    two.deny("attempt-00001.ckpt")

    is_blocked(two, Verdict.DENIED)


@pytest.mark.parametrize("where", [LIST, GET])
@pytest.mark.parametrize("status", [401, 403])
def test_f17_a_403_on_the_newest_stops_and_says_what_to_allow(status: int, where: str, two_on_s3: S3World) -> None:
    two_on_s3.inject(Fault(DENIED.kind, status, DENIED.code), where)

    error = is_blocked(two_on_s3, Verdict.DENIED)

    assert "s3:ListBucket" in str(error)
    assert [each.status for each in error.report.looked if each.reached][-1] == status  # type: ignore[attr-defined]  # a Report


def test_f17_a_403_on_the_head_of_what_is_referred_to_stops(s3_world: S3World) -> None:
    s3_world.attempt(0, 10)
    s3_world.attempt(1, restores=True, forward="reference")
    assert len(s3_world.archives(1)) == 1, "a reference"
    s3_world.inject(DENIED, "attempt-00000.ckpt/000001", methods=["HEAD"])

    error = refused(s3_world, ResumeBlocked)

    assert error.verdict == Verdict.DENIED
    assert "s3:ListBucket" in str(error)


def test_f17_a_root_that_is_denied_stops(two_on_s3: S3World) -> None:
    two_on_s3.inject(DENIED, "list-type=2")

    error = refused(two_on_s3, ResumeBlocked)

    assert error.verdict == Verdict.DENIED
    assert "s3:ListBucket" in str(error)


def test_f18_without_the_right_to_list_nothing_passes_for_absent(two_on_s3: S3World) -> None:
    """S3 then answers 403 for keys that are not there, and 200 for those that are."""
    two_on_s3.inject(DENIED, "list-type=2")
    chain = two_on_s3.chain("run/attempt-00002", *two_on_s3.derived([1, 0]), attempt=2)

    with pytest.raises(ResumeBlocked, match="s3:ListBucket") as caught:
        chain.walk(lambda found: found.step)

    assert caught.value.verdict == Verdict.DENIED


def test_f18_a_reference_to_what_is_gone_is_not_taken_for_damage(s3_world: S3World) -> None:
    s3_world.attempt(0, 10)
    s3_world.attempt(1, restores=True, forward="reference")
    s3_world.delete(s3_world.archives(0)[0])
    s3_world.inject(DENIED, "attempt-00000.ckpt/000001", methods=["HEAD"])

    assert "without the latter, S3 answers 403 for what is not there" in str(refused(s3_world, ResumeBlocked))


TROUBLES = {"500": BROKEN, "503": BUSY, "429": MANY, "reset": RESET, "hang": HANG}


@pytest.mark.parametrize("where", [LIST, GET], ids=["list", "get"])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_f19_a_store_that_does_not_answer_stops(trouble: str, where: str, two_on_s3: S3World) -> None:
    two_on_s3.inject(TROUBLES[trouble], where)

    error = is_blocked(two_on_s3, Verdict.UNREACHABLE, retry_policy=IMPATIENT)

    if trouble.isdigit():
        assert [each.status for each in error.report.looked if each.reached][-1] == int(trouble)  # type: ignore[attr-defined]  # a Report


def test_f19_the_deadline_ends_what_patience_would_not(two_on_s3: S3World) -> None:
    two_on_s3.inject(HANG, LIST)
    started = time.monotonic()

    error = is_blocked(
        two_on_s3, Verdict.UNREACHABLE, retry_policy=RetryPolicy(silence_seconds=100.0), deadline_seconds=2.0
    )

    assert "within the 2 s that a decision may take" in str(error)
    assert time.monotonic() - started < 100.0


@pytest.mark.parametrize("where", [LIST, GET], ids=["list", "get"])
def test_f20_what_comes_at_the_third_try_is_taken(where: str, two_on_s3: S3World) -> None:
    two_on_s3.inject(BUSY, where, methods=["GET"], times=2)

    step, resume = two_on_s3.restore(retry_policy=RetryPolicy(attempts=3, silence_seconds=5.0))

    assert step == 20
    assert resume.report is not None
    if where == LIST:
        assert resume.report.retries >= 1  # what an earlier test left hanging may have met the other


@pytest.fixture
def files(world: World) -> World:
    """As ``two``, but of files, as large as several requests."""
    for attempt, step in ((0, 10), (1, 20)):
        chain = world.chain(f"run/attempt-{attempt:05d}", attempt=attempt)
        contents = {f"part-{index}.bin": bytes([step]) * 3_000_000 for index in range(4)}
        world.save_files(chain, step, contents)
    return world


def next_of(world: World, **rules: Any) -> Chain:
    return world.chain("run/attempt-00002", *world.derived([1, 0]), attempt=2, rules=ResumeRules(**rules))


def break_off(world: World, fault: Fault, number: int) -> None:
    """A1 gives its head and some of the rest, and then this, for ever."""
    if isinstance(world, S3World):
        world.inject(fault, GET, after=9)
    else:
        assert isinstance(world, FileWorld)
        world.fail(number, GET, calls=["preadv"], after=9)


def test_f21_credentials_that_expire_on_the_way_stop_and_leave_no_file(files: World, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    break_off(files, EXPIRED, errno.EACCES)
    chain = next_of(files)

    with pytest.raises(ResumeBlocked) as caught:
        chain.walk(files.loader(mine))

    assert caught.value.verdict == Verdict.DENIED
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]
    assert [path.name for path in tmp_path.iterdir() if "staging" in path.name] == []


def test_f21_a_target_that_was_begun_is_called_half_restored(two: World) -> None:
    resume, target = two.resume(), state(0)
    break_off_in_the_body(two)

    with pytest.raises(ResumeBlocked) as caught:
        resume.restore(target)

    assert caught.value.verdict == Verdict.DENIED
    assert "half restored" in "".join(caught.value.__notes__)


def break_off_in_the_body(world: World) -> None:
    """After the first bytes have been handed out: what the store does then, whichever it is."""
    from chockstone.checkpoints.errors import StoreDenied
    from chockstone.checkpoints.reading.reader import Reader

    real = Reader._hand_out

    def hand_out(reader: Reader, run: Any, delivery: Any) -> None:
        real(reader, run, delivery)
        raise StoreDenied("the credentials have expired")

    world.monkeypatch.setattr(Reader, "_hand_out", hand_out)


@pytest.mark.parametrize(
    ("number", "verdict"),
    [
        (errno.EACCES, Verdict.DENIED),
        (errno.EPERM, Verdict.DENIED),
        (errno.EIO, Verdict.UNREACHABLE),
        (errno.ESTALE, Verdict.UNREACHABLE),
        (errno.ETIMEDOUT, Verdict.UNREACHABLE),
        (errno.ENOTCONN, Verdict.UNREACHABLE),
        (errno.EMFILE, Verdict.LOCAL),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else "",
)
@pytest.mark.parametrize("call", ["scandir", "open", "preadv"])
def test_f22_a_disk_that_refuses_stops(number: int, verdict: Verdict, call: str, file_world: FileWorld) -> None:
    file_world.attempt(0, 10)
    file_world.attempt(1, 20)
    where = "attempt-00001.ckpt" if call == "scandir" else "attempt-00001.ckpt/0"
    file_world.fail(number, where, calls=[call])

    is_blocked(file_world, verdict)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_f22_a_root_that_cannot_be_listed_stops(number: int, file_world: FileWorld) -> None:
    file_world.attempt(0, 10)
    file_world.fail(number, "world/run", calls=["listdir"])

    assert refused(file_world, ResumeBlocked).verdict in (Verdict.DENIED, Verdict.UNREACHABLE)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_f22_a_file_that_is_not_ours_to_read_stops(file_world: FileWorld) -> None:
    file_world.attempt(0, 10)
    file_world.attempt(1, 20)
    path = file_world.path / file_world.archives(1)[0]
    path.chmod(0)

    assert refused(file_world, ResumeBlocked).verdict == Verdict.DENIED


def test_f22_a_part_of_the_path_that_is_a_file_stops(file_world: FileWorld) -> None:
    file_world.write("run", b"not a folder")

    assert refused(file_world, ResumeBlocked).verdict == Verdict.DENIED


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE])
@pytest.mark.parametrize("on_unreadable", ["stop", "older"])
def test_f23_our_own_disk_is_to_blame_for_itself(number: int, on_unreadable: str, files: World, tmp_path: Path) -> None:
    real = os.open

    def full(path: Any, flags: int, *values: Any, **options: Any) -> int:
        if flags & os.O_CREAT and str(path).startswith("part-"):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, flags, *values, **options)

    files.monkeypatch.setattr(os, "open", full)
    chain = next_of(files, on_unreadable=on_unreadable)

    with pytest.raises(ResumeBlocked) as caught:
        chain.walk(files.loader(tmp_path / "mine"))

    assert caught.value.verdict == Verdict.LOCAL
    verdicts = [verdict for _, verdict in files.verdicts(chain.report)]
    assert Verdict.CORRUPT not in verdicts
    assert verdicts[-1] == Verdict.LOCAL
    assert not (tmp_path / "mine").exists()


def test_f24_what_an_older_one_stands_in_for_leaves_no_file(files: World, tmp_path: Path) -> None:
    break_off(files, BROKEN, errno.EIO)
    chain = next_of(files, on_unreadable="older")

    assert chain.walk(files.loader(tmp_path / "mine")) == 10
    found = {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    assert found == {f"part-{index}.bin": bytes([10]) * 3_000_000 for index in range(4)}
    assert files.verdicts(chain.report)[1:] == [
        ("attempt-00001:000001-0001", Verdict.UNREACHABLE),
        ("attempt-00000:000001-0001", Verdict.VERIFIED),
    ]
    assert chain.report is not None and chain.report.warnings


def test_f24_of_tensors_nothing_is_left_of_the_newer_one(two: World) -> None:
    from chockstone.checkpoints.errors import StoreUnreachable
    from chockstone.checkpoints.reading.reader import Reader

    real, fails = Reader._hand_out, [True]

    def hand_out(reader: Reader, run: Any, delivery: Any) -> None:
        real(reader, run, delivery)
        if fails.pop() if fails else False:
            raise StoreUnreachable("503")

    two.monkeypatch.setattr(Reader, "_hand_out", hand_out)

    step, resume = two.restore(on_unreadable="older")

    assert step == 10, "and not a mixture"
    assert resume.report is not None and resume.report.warnings


def test_f24_the_next_save_goes_before_what_could_not_be_read(two: World) -> None:
    two.interrupt("attempt-00001.ckpt/0")
    with two.resume(on_unreadable="older") as resume:
        target = state(0)
        resume.restore(target)
        assert step_of(target) == 10
        resume.save(state(11), step=11).result()
    two.heal()

    assert two.restore()[0] == 11


@pytest.mark.parametrize("after", range(0, 10, 3))
def test_f27_a_body_that_breaks_off_once_is_asked_for_again(after: int, two_on_s3: S3World) -> None:
    two_on_s3.inject(SHORT, GET, methods=["GET"], times=1, after=after)

    assert two_on_s3.restore(retry_policy=RETRY_POLICY)[0] == 20


@pytest.mark.parametrize("after", [0, 1])
def test_f27_a_body_that_always_breaks_off_is_no_damage(after: int, two_on_s3: S3World) -> None:
    two_on_s3.inject(SHORT, GET, methods=["GET"], after=after)

    is_blocked(two_on_s3, Verdict.UNREACHABLE)


def test_f27_a_listing_that_breaks_off_is_not_a_short_one(two_on_s3: S3World) -> None:
    two_on_s3.inject(SHORT, LIST, methods=["GET"])

    is_blocked(two_on_s3, Verdict.UNREACHABLE)


def test_f27_a_record_that_breaks_off_is_no_damage(s3_world: S3World) -> None:
    s3_world.attempt(0, 10)
    s3_world.attempt(0, 20, restores=True)
    s3_world.inject(SHORT, "claims/000002.seen.json", methods=["GET"])

    with s3_world.resume() as resume, pytest.raises(ResumeError) as caught:
        resume.restore(state(0))

    assert isinstance(caught.value, ResumeBlocked)
    assert caught.value.verdict == Verdict.UNREACHABLE
