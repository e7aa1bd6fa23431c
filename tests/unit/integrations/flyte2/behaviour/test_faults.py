"""Faults through the adapter of Flyte 2; the numbers are those of the fault table."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flyte._checkpoint import Checkpoint as NativeCheckpoint
from flyte._internal.runtime.convert import convert_from_native_to_error
from flyte.errors import NonRecoverableError, RuntimeSystemError

from chockstone.checkpoints.errors import ResumeBlocked, ResumeExhausted
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.integrations.flyte2 import (
    CheckpointBlocked,
    CheckpointsExhausted,
    CheckpointUnreachable,
    Flyte2Checkpoint,
)
from support.integrations.flyte2_attempts import IDENTITY, Storage, loaded, saved
from support.loopback_s3 import Fault, Kind, Proxy, faulty_proxy

ARCHIVE = ".ckpt/000001-0001.tar"


@pytest.fixture
def proxy(s3: Storage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with faulty_proxy(s3.server) as proxy:
        monkeypatch.setenv("FLYTE_AWS_ENDPOINT", proxy.url)
        yield proxy


def verdicts(checkpoint: Flyte2Checkpoint) -> list[tuple[int | None, Verdict]]:
    assert checkpoint.report is not None
    return [(each.attempt, each.verdict) for each in checkpoint.report.looked if each.reached]


# F08


def test_f08_the_path_counts_from_one_and_the_environment_from_zero(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(storage, 1, b"one", step=1)
    saved(storage, 2, b"two", step=2)
    monkeypatch.setenv("ACTION_NAME", "a0")
    monkeypatch.setenv("FLYTE_ATTEMPT_NUMBER", "2")
    third = storage.attempt(3, prev=0)  # the platform names none, as it did for a while
    assert third.remote_source is None

    assert third.prev_exists()
    assert loaded(third) == b"two"
    assert third.report is not None
    assert third.report.attempt == 3
    assert third.report.choice is not None
    assert third.report.choice.attempt == 2


def test_f08_attempts_that_saved_nothing_are_passed_by(storage: Storage) -> None:
    saved(storage, 1, b"one", step=1)
    assert loaded(storage.attempt(3)) == b"one"  # 2 never started
    assert loaded(storage.attempt(4)) == b"one"  # 3 looked and died

    assert loaded(storage.attempt(5)) == b"one"


def test_f08_the_hosted_layout_has_both_counts_in_one_path(tmp_path: Path) -> None:
    run = f"{tmp_path}/r969nmh2r5m6mqqnnb4h/a0"
    first = f"{run}/1/ge/r969nmh2r5m6mqqnnb4h-a0-0/_flytecheckpoints"
    second = f"{run}/2/5d/r969nmh2r5m6mqqnnb4h-a0-1/_flytecheckpoints"
    Flyte2Checkpoint(first, identity=IDENTITY).save_sync(b"one")
    resumed = Flyte2Checkpoint(
        second, second, identity=IDENTITY
    )  # it was seen to hand out the current one as the previous

    assert loaded(resumed) == b"one"


# F10


@pytest.mark.parametrize("loads", [True, False], ids=["after it had loaded", "before it had"])
def test_f10_a_recovered_run_that_died_at_once_still_goes_on_from_the_run_before(storage: Storage, loads: bool) -> None:
    saved(storage, 1, b"recovered", step=5)
    run = {**IDENTITY, "run": "r2"}
    places = [f"{storage.base}/r2/a0/{attempt}/_flytecheckpoints" for attempt in (1, 2, 3)]
    first = Flyte2Checkpoint(places[0], storage.dest(1), identity=run)
    if loads:
        assert loaded(first) == b"recovered"
    else:
        assert first._chain().claim()

    assert loaded(Flyte2Checkpoint(places[1], places[0], identity=run)) == b"recovered"
    assert loaded(Flyte2Checkpoint(places[2], places[1], identity=run)) == b"recovered"


# F14


def _flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "flipped in the payload": lambda content: _flip(content, content.index(b"NEWER") + 2),
    "flipped in the manifest": lambda content: _flip(content, content.index(b'"members"') + 3),
    "flipped in the commit": lambda content: _flip(content, content.rindex(b"COMMIT") + 512),
    "zeroed": lambda content: bytes(len(content)),
    "emptied": lambda content: b"",
    "appended to": lambda content: content + b"x" * 512,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_f14_what_is_damaged_is_passed_by_and_stays_as_evidence(
    storage: Storage, damage: Callable[[bytes], bytes]
) -> None:
    saved(storage, 1, b"older", step=10)
    saved(storage, 2, b"NEWER" * 1000, step=20)
    damaged = damage(storage.read(2, ARCHIVE))
    storage.write(2, damaged, ARCHIVE)
    resumed = storage.attempt(3)

    assert loaded(resumed) == b"older"
    assert (2, Verdict.CORRUPT) in verdicts(resumed)
    assert storage.read(2, ARCHIVE) == damaged
    assert [path.name for path in resumed.path.iterdir()] == ["payload"]


def test_f14_a_deleted_archive_is_a_save_that_never_was(storage: Storage) -> None:
    saved(storage, 1, b"older", step=10)
    saved(storage, 2, b"newer", step=20)
    storage.remove(2, ARCHIVE)
    storage.remove(2)

    assert loaded(storage.attempt(3)) == b"older"


def test_f14_inside_an_attempt_the_save_before_comes_before_an_older_attempt(storage: Storage) -> None:
    saved(storage, 1, b"older", step=10)
    second = storage.attempt(2)
    second.save_sync(b"good", step=20)
    second.save_sync(b"NEWER" * 100, step=30)
    name = ".ckpt/000002-0001.tar"
    storage.write(2, DAMAGE["flipped in the payload"](storage.read(2, name)), name)
    resumed = storage.attempt(3)

    assert loaded(resumed) == b"good"
    assert resumed.report is not None
    assert resumed.report.steps_lost == 10


def test_f16_if_all_are_damaged_it_is_not_a_fresh_start_and_no_attempt_helps(storage: Storage) -> None:
    saved(storage, 1, b"NEWER" * 100, step=10)
    storage.write(1, DAMAGE["flipped in the payload"](storage.read(1, ARCHIVE)), ARCHIVE)
    resumed = storage.attempt(2)

    for _ in range(2):
        with pytest.raises(CheckpointsExhausted) as caught:
            resumed.load_sync()
    assert isinstance(caught.value, ResumeExhausted)
    assert not convert_from_native_to_error(caught.value).recoverable
    with pytest.raises(ResumeExhausted):
        resumed.save_sync(b"buries it")
    resumed.acknowledge_fresh_start()
    resumed.save_sync(b"anew")
    assert loaded(storage.attempt(3)) == b"anew"


# F17 and F19


@pytest.mark.parametrize(
    ("method", "containing"),
    [("GET", "a0%2F2%2F"), ("GET", "a0/2/_flytecheckpoints.ckpt/000001"), ("HEAD", "a0/2/")],
    ids=["list", "get", "head"],
)
def test_f17_a_denied_attempt_blocks_and_nothing_older_stands_in(
    s3: Storage, proxy: Proxy, method: str, containing: str
) -> None:
    saved(s3, 1, b"older", step=10)
    if method == "HEAD":
        NativeCheckpoint(s3.dest(2)).save_sync(b"native")  # what is ours is not asked for its head
    else:
        saved(s3, 2, b"newer", step=20)
    proxy.inject(Fault(Kind.STATUS, 403, "AccessDenied"), method=method, containing=containing)
    resumed = s3.attempt(3)

    with pytest.raises(CheckpointBlocked) as caught:
        resumed.load_sync()

    assert isinstance(caught.value, ResumeBlocked)
    assert isinstance(caught.value, NonRecoverableError)
    assert caught.value.verdict == Verdict.DENIED
    assert not convert_from_native_to_error(caught.value).recoverable
    assert convert_from_native_to_error(caught.value).err.code == "CheckpointBlocked"
    if containing == "a0%2F2%2F":
        assert "s3:ListBucket" in str(caught.value)
    assert list(resumed.path.iterdir()) == []


def test_f25_a_task_that_swallows_the_refusal_cannot_bury_what_is_there(s3: Storage, proxy: Proxy) -> None:
    saved(s3, 1, b"precious", step=10)
    proxy.inject(Fault(Kind.STATUS, 403, "AccessDenied"), method="GET", containing="a0%2F1%2F")
    resumed = s3.attempt(2)
    with pytest.raises(ResumeBlocked):
        resumed.load_sync()

    with pytest.raises(ResumeBlocked):
        resumed.save_sync(b"from zero")

    proxy.heal()
    assert loaded(s3.attempt(3)) == b"precious"


def test_f26_asking_whether_there_is_one_raises_when_nobody_can_know(
    s3: Storage, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(s3, 1, b"older", step=10)
    monkeypatch.setenv("ACTION_NAME", "a0")
    monkeypatch.setenv("FLYTE_ATTEMPT_NUMBER", "1")
    proxy.inject(Fault(Kind.STATUS, 403, "AccessDenied"), method="GET", containing="a0%2F1%2F")

    with pytest.raises(CheckpointBlocked):
        s3.attempt(2, prev=0).prev_exists()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(Kind.STATUS, 500, "InternalError"),
        Fault(Kind.STATUS, 503, "SlowDown"),
        Fault(Kind.STATUS, 429, "TooManyRequests"),
        Fault(Kind.RESET),
        Fault(Kind.STALL),
    ],
    ids=["500", "503", "429", "reset", "hang"],
)
def test_f19_an_attempt_that_cannot_be_reached_blocks_and_another_try_may_help(
    s3: Storage, proxy: Proxy, fault: Fault
) -> None:
    saved(s3, 1, b"older", step=10)
    saved(s3, 2, b"newer", step=20)
    proxy.inject(fault, method="GET", containing="a0%2F2%2F")
    resumed = s3.attempt(3, deadline_seconds=3.0 if fault.kind is Kind.STALL else 60.0)

    with pytest.raises(CheckpointUnreachable) as caught:
        resumed.load_sync()

    assert isinstance(caught.value, RuntimeSystemError)
    assert caught.value.verdict == Verdict.UNREACHABLE
    assert convert_from_native_to_error(caught.value).recoverable
    proxy.heal()
    assert loaded(s3.attempt(3)) == b"newer"


def test_f20_a_store_that_comes_back_costs_nothing_but_time(s3: Storage, proxy: Proxy) -> None:
    saved(s3, 1, b"older", step=10)
    saved(s3, 2, b"newer", step=20)
    proxy.inject(Fault(Kind.STATUS, 503, "SlowDown"), method="GET", containing="a0%2F2%2F", times=2)

    assert loaded(s3.attempt(3)) == b"newer"


def test_f17_no_credentials_at_all_are_no_fresh_start(s3: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(s3, 1, b"older", step=10)
    monkeypatch.delenv("FLYTE_AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("FLYTE_AWS_SECRET_ACCESS_KEY")

    resumed = s3.attempt(2)

    with pytest.raises(CheckpointBlocked, match="no valid AWS credentials"):
        resumed.load_sync()
    with pytest.raises(CheckpointBlocked):
        resumed.save_sync(b"from zero")


# F22


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE], ids=lambda number: errno.errorcode[number])
def test_f22_a_directory_that_cannot_be_read_is_no_fresh_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    storage = Storage(str(tmp_path))
    saved(storage, 1, b"precious", step=10)
    _refuse(monkeypatch, "scandir", f"{storage.dest(1)}.ckpt", number)

    with pytest.raises(ResumeBlocked):
        storage.attempt(2).load_sync()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO], ids=lambda number: errno.errorcode[number])
def test_f22_an_object_of_flyte_that_cannot_be_read_is_no_fresh_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    storage = Storage(str(tmp_path))
    NativeCheckpoint(storage.dest(1)).save_sync(b"precious")
    _refuse(monkeypatch, "open", storage.dest(1), number)

    with pytest.raises(ResumeBlocked):
        storage.attempt(2).load_sync()


def _refuse(monkeypatch: pytest.MonkeyPatch, call: str, place: str, number: int) -> None:
    real = getattr(os, call)

    def refuses(path: Any, *values: Any, **options: Any) -> Any:
        if not isinstance(path, int) and os.fspath(path) == place:
            raise OSError(number, os.strerror(number), place)
        return real(path, *values, **options)

    monkeypatch.setattr(os, call, refuses)


def test_f23_a_full_disk_of_our_own_is_not_blamed_on_the_checkpoint(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(storage, 1, b"older", step=10)
    saved(storage, 2, b"newer", step=20)
    resumed = storage.attempt(3)

    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("chockstone.integrations.flyte2.checkpointer.mkdtemp", full)
        with pytest.raises(CheckpointUnreachable, match="no space is left on a disk of this machine") as caught:
            resumed.load_sync()
        with pytest.raises(CheckpointUnreachable):
            resumed.save_sync(b"instead")  # nothing is saved before what could not be restored

    assert not isinstance(caught.value, NonRecoverableError)  # so that Flyte tries again
    assert caught.value.verdict == Verdict.LOCAL
    assert loaded(resumed) == b"newer"  # once there is room
    assert (2, Verdict.CORRUPT) not in verdicts(resumed)
    assert loaded(storage.attempt(3)) == b"newer"


# F37


def test_f37_what_flyte_saved_is_taken_unverified_and_the_next_is_ours(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "state.json").write_text("native")
    NativeCheckpoint(storage.dest(1)).save_sync(tmp_path / "tree")
    second = storage.attempt(2)

    tree = second.load_sync()

    assert tree is not None
    assert (tree / "state.json").read_text() == "native"
    assert second.report is not None
    assert second.report.choice is not None
    assert second.report.choice.verdict == Verdict.UNVERIFIED
    second.save_sync(b"ours")
    assert loaded(storage.attempt(3)) == b"ours"


@pytest.mark.parametrize("is_async", [True, False])
async def test_f37_flyte_reads_what_ours_saved(storage: Storage, tmp_path: Path, is_async: bool) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "state.json").write_text("ours")
    (tmp_path / "tree" / "link").symlink_to("sub/state.json")
    storage.attempt(1).save_sync(tmp_path / "tree")
    storage.attempt(2).save_sync(b"raw")

    trees, payload = (NativeCheckpoint(str(tmp_path / "x"), storage.dest(attempt)) for attempt in (1, 2))
    tree = await trees.load() if is_async else trees.load_sync()
    raw = await payload.load() if is_async else payload.load_sync()

    assert tree is not None
    assert (tree / "link").read_text() == "ours"
    assert raw is not None
    assert raw.read_bytes() == b"raw"


def test_f37_flyte_reads_the_last_of_several_saves(storage: Storage, tmp_path: Path) -> None:
    first = storage.attempt(1)
    first.save_sync(b"a" * 6_000_000)
    first.save_sync(b"b")

    assert storage.read(1) == b"b"


def test_f37_without_the_view_only_we_can_read_it(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    storage.attempt(1, flyte_native_view=False).save_sync(b"ours")

    assert NativeCheckpoint(str(tmp_path / "x"), storage.dest(1)).load_sync() is None
    assert loaded(storage.attempt(2)) == b"ours"


def test_f37_a_view_that_cannot_be_refreshed_costs_a_warning(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr("chockstone.integrations.flyte2.checkpointer.refresh_flyte_native", full)
        storage.attempt(1).save_sync(b"ours")

    assert "copy for Flyte not refreshed" in caplog.text
    assert loaded(storage.attempt(2)) == b"ours"


@pytest.mark.parametrize("cut", [0, 1, 40, -20], ids=["empty", "one byte", "in the header", "at the end"])
def test_f37_a_torn_object_of_flyte_is_passed_by(storage: Storage, tmp_path: Path, cut: int) -> None:
    saved(storage, 1, b"older", step=10)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "noise").write_bytes(os.urandom(100_000))
    NativeCheckpoint(storage.dest(2)).save_sync(tmp_path / "tree")
    storage.write(2, storage.read(2)[:cut])
    resumed = storage.attempt(3)

    if cut == 1:
        assert loaded(resumed) == b"\x1f"  # nothing tells it from a payload: Flyte keeps no digests
    else:
        assert loaded(resumed) == b"older"


def test_f37_a_flipped_byte_in_a_tar_of_flyte_is_found_by_its_checksum(storage: Storage, tmp_path: Path) -> None:
    saved(storage, 1, b"older", step=10)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "noise").write_bytes(os.urandom(100_000))
    NativeCheckpoint(storage.dest(2)).save_sync(tmp_path / "tree")
    storage.write(2, _flip(storage.read(2), 50_000))

    assert loaded(storage.attempt(3)) == b"older"


def test_f37_legacy_may_be_refused(storage: Storage) -> None:
    saved(storage, 1, b"older", step=10)
    NativeCheckpoint(storage.dest(2)).save_sync(b"native")

    assert loaded(storage.attempt(3, legacy="reject")) == b"older"


def test_f38_a_hostile_tar_of_flyte_leaves_nothing_outside(storage: Storage, tmp_path: Path) -> None:
    saved(storage, 1, b"older", step=10)
    bomb = io.BytesIO()
    with tarfile.open(fileobj=bomb, mode="w:gz") as tar:
        info = tarfile.TarInfo(f"{'../' * 12}{tmp_path}/escaped".replace("//", "/"))
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    storage.write(2, bomb.getvalue())
    resumed = storage.attempt(3)

    assert loaded(resumed) == b"older"
    assert (2, Verdict.CORRUPT) in verdicts(resumed)
    assert not (tmp_path / "escaped").exists()
