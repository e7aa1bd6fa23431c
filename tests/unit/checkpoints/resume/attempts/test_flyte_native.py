from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest
from obstore.store import LocalStore

from chockstone.checkpoints import Archive
from chockstone.checkpoints.errors import (
    CheckpointError,
    CheckpointMissing,
    DamagedArchive,
    LocalResourceError,
    StoreDenied,
    StoreError,
    StoreUnreachable,
)
from chockstone.checkpoints.file_archive import write_files
from chockstone.checkpoints.format.layout import MAX_MEMBERS, Member
from chockstone.checkpoints.resume.attempts import flyte_native
from chockstone.checkpoints.resume.attempts.flyte_native import (
    PAYLOAD,
    FlyteNativeFile,
    FlyteNativeForm,
    fetch_flyte_native,
    list_flyte_native,
    refresh_flyte_native,
)
from chockstone.checkpoints.resume.attempts.places import AttemptPlace, AttemptPlaces, BucketPlace, FilePlace
from chockstone.checkpoints.stores.bucket import Bucket, RetryPolicy
from chockstone.checkpoints.stores.file_store import PARTIAL
from chockstone.checkpoints.stores.obstore_bucket import MAX_BYTES, ObstoreBucket
from support.loopback_s3 import Fault, Kind, Proxy, faulty_proxy, make_bucket, s3_server, set_environment

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
MIB = 1024**2
FILES = {"a.bin": 2 * MIB + 5, "sub/b.bin": 70_000, "sub/deep/c": 6 * MIB, "empty": 0}

_numbers = count()


@pytest.fixture(scope="module")
def shared_proxy() -> Iterator[Proxy]:
    with s3_server() as url, faulty_proxy(url) as proxy, pytest.MonkeyPatch.context() as monkeypatch:
        make_bucket(url, "native")
        set_environment(monkeypatch, proxy.url)
        yield proxy


@pytest.fixture(scope="module")
def places(shared_proxy: Proxy) -> AttemptPlaces:
    return AttemptPlaces(retry_policy=RetryPolicy(attempts=1))


@pytest.fixture
def proxy(shared_proxy: Proxy) -> Iterator[Proxy]:
    yield shared_proxy
    shared_proxy.heal()


@pytest.fixture
def remote(proxy: Proxy, places: AttemptPlaces) -> BucketPlace:
    place = places.open(f"s3://native/run-{next(_numbers)}/attempt")
    assert isinstance(place, BucketPlace)
    return place


@pytest.fixture
def local(tmp_path: Path) -> FilePlace:
    return FilePlace(tmp_path / "attempt")


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest) -> AttemptPlace:
    found: AttemptPlace = request.getfixturevalue("local" if request.param == "file" else "remote")
    return found


def content(seed: str, size: int) -> bytes:
    return hashlib.shake_128(seed.encode()).digest(size)


def commit(place: AttemptPlace, name: str, contents: dict[str, bytes]) -> list[Member]:
    write_files(place.store, name, dict(contents), created_at=NOON)
    with Archive(place.open(name)) as archive:
        return list(archive.members.values())


def state(seed: str) -> dict[str, bytes]:
    return {name: content(seed + name, size) for name, size in FILES.items()}


def put(place: AttemptPlace, name: str, data: bytes) -> None:
    """As Flyte itself does; ``name`` is empty for an object."""
    if isinstance(place, BucketPlace):
        sink = place.bucket.begin(f"{place.key}/{name}" if name else place.key, len(data))
        sink.write_at(0, memoryview(data))
        sink.commit(overwrite=True)
    else:
        assert isinstance(place, FilePlace)
        path = place.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def shown(place: AttemptPlace, form: FlyteNativeForm, out: Path) -> dict[str, bytes]:
    """What a reader of the view gets."""
    out.mkdir()
    fetch_flyte_native(place, form, list_flyte_native(place, form), out)
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize("form", ["tree", "object"])
def test_where_nothing_was_written_nothing_is_listed(place: AttemptPlace, form: FlyteNativeForm) -> None:
    write_files(place.store, "000001-0001", {"a": b"ours"}, created_at=NOON)

    assert list_flyte_native(place, form) == ()


def test_what_flytes_own_checkpoint_left_is_fetched(place: AttemptPlace, tmp_path: Path) -> None:
    files = {**state("native"), "with space.bin": b"x", "gewicht-ü.bin": b"y", "epoch=3.ckpt": b"z"}
    for name, data in files.items():
        put(place, name, data)
    read: list[int] = []

    listed = list_flyte_native(place, "tree")
    (tmp_path / "out").mkdir()
    fetch_flyte_native(place, "tree", listed, tmp_path / "out", on_bytes=read.append)

    assert {file.name: file.size for file in listed} == {name: len(data) for name, data in files.items()}
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files} == files
    assert sum(read) == sum(map(len, files.values()))


def test_an_object_is_one_file(place: AttemptPlace, tmp_path: Path) -> None:
    data = content("object", 9 * MIB)
    put(place, "", data)

    assert [(file.name, file.size) for file in list_flyte_native(place, "object")] == [(PAYLOAD, len(data))]
    assert shown(place, "object", tmp_path / "out") == {PAYLOAD: data}


def test_listing_takes_one_request(remote: BucketPlace, proxy: Proxy) -> None:
    for name, data in state("x").items():
        put(remote, name, data)
    put(remote, "", b"object")
    proxy.requests.clear()

    list_flyte_native(remote, "tree")
    list_flyte_native(remote, "object")

    assert [line.split()[0] for line in proxy.requests] == ["GET", "HEAD"]
    assert remote.cost.requests == 2


def test_markers_of_folders_are_no_files(remote: BucketPlace) -> None:
    put(remote, "sub/", b"")
    put(remote, "sub/a", b"x")

    assert [file.name for file in list_flyte_native(remote, "tree")] == ["sub/a"]


def test_links_devices_and_folders_are_no_files(local: FilePlace, tmp_path: Path) -> None:
    (local.path / "empty").mkdir(parents=True)
    (local.path / "a").write_text("x")
    (tmp_path / "secret").write_text("x")
    (local.path / "link").symlink_to(tmp_path / "secret")
    (local.path / "folder").symlink_to(tmp_path)
    os.mkfifo(local.path / "pipe")

    assert [file.name for file in list_flyte_native(local, "tree")] == ["a"]


@pytest.mark.parametrize("form", ["tree", "object"])
def test_a_place_that_cannot_be_asked_is_not_empty(remote: BucketPlace, proxy: Proxy, form: FlyteNativeForm) -> None:
    method = "GET" if form == "tree" else "HEAD"
    proxy.inject(Fault(Kind.STATUS, 403, "AccessDenied"), method=method, times=1)
    with pytest.raises(StoreDenied):
        list_flyte_native(remote, form)

    proxy.inject(Fault(Kind.STATUS, 503, "SlowDown"), method=method)
    with pytest.raises(StoreUnreachable):
        list_flyte_native(remote, form)


@pytest.mark.parametrize(
    "names",
    [
        ["../x"], ["a/../../x"], ["/etc/x"], ["a//b"], ["a/./b"], [""], [".ckpt/claims/000001.json"], ["a\0b"],
        ["a\\b"], ["a\nb"], ["n" * 256], ["d/" * 600 + "x"], ["a", "A"], ["a", "a"], ["a", "a/b"],
        ["ü", "Ü"], ["a/b", "A/B"],
    ],
)  # fmt: skip
def test_hostile_names_are_refused_before_the_first_byte(place: AttemptPlace, tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "out").mkdir()

    with pytest.raises(DamagedArchive):
        fetch_flyte_native(
            place, "tree", [FlyteNativeFile("good", 1), *(FlyteNativeFile(name, 1) for name in names)], tmp_path / "out"
        )

    assert os.listdir(tmp_path / "out") == []
    assert place.cost.requests == 0


def test_more_files_than_a_checkpoint_has_are_refused(local: FilePlace, tmp_path: Path) -> None:
    with pytest.raises(DamagedArchive, match="more than 10000 files"):
        fetch_flyte_native(
            local, "tree", [FlyteNativeFile(f"f{number}", 0) for number in range(MAX_MEMBERS + 1)], tmp_path
        )


@pytest.mark.parametrize("size", [3, 10, 17])
def test_a_file_is_fetched_as_it_was_listed_or_not_at_all(place: AttemptPlace, tmp_path: Path, size: int) -> None:
    put(place, "a", b"0123456789")
    listed = list_flyte_native(place, "tree")
    put(place, "a", b"9" * size)
    (tmp_path / "out").mkdir()
    expected: type[Exception] = StoreError if isinstance(place, BucketPlace) else DamagedArchive

    if size == 10 and isinstance(place, FilePlace):
        return  # a native file has no digest: another one of that length is as good
    with pytest.raises(expected):
        fetch_flyte_native(place, "tree", listed, tmp_path / "out")

    assert all(path.stat().st_size == 0 for path in (tmp_path / "out").iterdir())


def test_a_file_that_is_gone_is_missing(place: AttemptPlace, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    with pytest.raises(CheckpointMissing):
        fetch_flyte_native(place, "tree", [FlyteNativeFile("a", 3)], tmp_path / "out")


def test_a_folder_that_became_a_link_is_not_followed(local: FilePlace, tmp_path: Path) -> None:
    put(local, "sub/a", b"mine")
    listed = list_flyte_native(local, "tree")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a").write_text("evil")
    (local.path / "sub").rename(tmp_path / "moved")
    (local.path / "sub").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "out").mkdir()

    with pytest.raises(StoreError):
        fetch_flyte_native(local, "tree", listed, tmp_path / "out")

    assert not (tmp_path / "out" / "sub").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EMFILE])
def test_our_own_disk_is_not_the_fault_of_the_place(
    place: AttemptPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    put(place, "a", b"x")
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(flyte_native, "write_whole" if number == errno.ENOSPC else "create_file", fail)

    with pytest.raises(LocalResourceError):
        fetch_flyte_native(place, "tree", list_flyte_native(place, "tree"), tmp_path / "out")


def test_a_connection_that_breaks_leaves_no_short_file(remote: BucketPlace, proxy: Proxy, tmp_path: Path) -> None:
    put(remote, "a", content("a", MIB))
    listed = list_flyte_native(remote, "tree")
    (tmp_path / "out").mkdir()
    proxy.inject(Fault(Kind.SHORT_BODY), method="GET", containing="/a")

    with pytest.raises(StoreUnreachable):
        fetch_flyte_native(remote, "tree", listed, tmp_path / "out")


def test_the_view_shows_exactly_the_members(place: AttemptPlace, tmp_path: Path) -> None:
    new = state("new")
    members = commit(place, "000001-0001", new)

    refresh_flyte_native(place, "000001-0001", members)

    assert shown(place, "tree", tmp_path / "out") == new


def test_saves_merge_unless_they_replace(place: AttemptPlace, tmp_path: Path) -> None:
    old, new = state("old"), {"a.bin": b"newer", "sub/d": b"added"}
    refresh_flyte_native(place, "000001-0001", commit(place, "000001-0001", old))

    members = commit(place, "000002-0001", new)
    refresh_flyte_native(place, "000002-0001", members)
    merged = shown(place, "tree", tmp_path / "merged")
    refresh_flyte_native(place, "000002-0001", members, replace=True)
    replaced = shown(place, "tree", tmp_path / "replaced")

    assert merged == {**old, **new}
    assert replaced == new
    if isinstance(place, FilePlace):
        assert sorted(path.name for path in place.path.rglob("*")) == ["a.bin", "d", "sub"]
        assert os.listdir(place.folder / PARTIAL) == []


def test_an_object_shows_one_member(place: AttemptPlace, tmp_path: Path) -> None:
    put(place, "", b"old")
    data = content("new", 6 * MIB)
    members = commit(place, "000001-0001", {"whatever.bin": data, "more": b"x"})

    refresh_flyte_native(place, "000001-0001", members[:1], form="object")
    with pytest.raises(CheckpointError, match="cannot show 2 files"):
        refresh_flyte_native(place, "000001-0001", members, form="object")

    assert shown(place, "object", tmp_path / "out") == {PAYLOAD: data}


def test_a_generation_that_is_gone_is_missing(place: AttemptPlace) -> None:
    members = commit(place, "000001-0001", {"a": b"x"})
    place.store.delete("000001-0001")

    with pytest.raises(CheckpointMissing):
        refresh_flyte_native(place, "000001-0001", members)


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_the_kernel_copies_nothing_we_do(
    local: FilePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    new = state("new")
    members = commit(local, "000001-0001", new)
    monkeypatch.setattr(os, "copy_file_range", refuse)

    refresh_flyte_native(local, "000001-0001", members)

    assert shown(local, "tree", tmp_path / "out") == new


def test_no_link_of_the_view_is_followed(local: FilePlace, tmp_path: Path) -> None:
    members = commit(local, "000001-0001", {"sub/a": b"new", "b": b"new"})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "victim").write_text("mine")
    local.path.mkdir()
    (local.path / "b").symlink_to(tmp_path / "victim")
    refresh_flyte_native(local, "000001-0001", members[1:])
    (local.path / "sub").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StoreError):
        refresh_flyte_native(local, "000001-0001", members)

    assert (tmp_path / "victim").read_text() == "mine"
    assert (local.path / "b").read_text() == "new"
    assert os.listdir(tmp_path / "elsewhere") == []
    assert os.listdir(local.folder / PARTIAL) == []


_KILLED = """
import json, os, signal, sys
from pathlib import Path
from chockstone.checkpoints import Archive
from chockstone.checkpoints.resume.attempts import flyte_native
from chockstone.checkpoints.resume.attempts.places import FilePlace

place = FilePlace(Path(sys.argv[1]))
members = {}
for name in ("000001-0001", "000002-0001"):
    with Archive(place.open(name)) as archive:
        members[name] = list(archive.members.values())

def deadly(call, left):
    def perform(*args, **options):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)
    return perform

for steps in range(1000):
    flyte_native.refresh_flyte_native(place, "000001-0001", members["000001-0001"], replace=True)
    if not (child := os.fork()):
        left = iter(range(steps))
        for call in ("open", "copy_file_range", "fsync", "rename", "mkdir", "unlink", "rmdir"):
            setattr(os, call, deadly(getattr(os, call), left))
        flyte_native.refresh_flyte_native(place, "000002-0001", members["000002-0001"], replace=True)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = {file.name: (place.path / file.name).read_text() for file in flyte_native.list_flyte_native(place, "tree")}
    print(json.dumps([status, found]))
    if status == 0:
        break
"""


def test_a_kill_at_any_call_leaves_each_file_old_or_new(local: FilePlace) -> None:
    old = {"a": "old" * 9000, "sub/b": "old", "gone": "old"}
    new = {"a": "new" * 9000, "sub/b": "new", "d/c": "new"}
    commit(local, "000001-0001", {name: text.encode() for name, text in old.items()})
    commit(local, "000002-0001", {name: text.encode() for name, text in new.items()})

    command = [sys.executable, "-W", "ignore", "-c", _KILLED, str(local.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    assert done.returncode == 0, done.stderr
    *killed, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(killed) > 30
    for status, found in killed:
        assert status == -signal.SIGKILL
        assert all(text in {old.get(name), new.get(name)} for name, text in found.items())
        assert {"a", "sub/b"} <= found.keys() <= {*old, *new}
        assert "gone" in found or found == new  # nothing goes before all that is new is there
    assert last == [0, new]
    local.store.sweep()
    assert os.listdir(local.folder / PARTIAL) == []


def test_s3_copies_large_members_itself(remote: BucketPlace, proxy: Proxy) -> None:
    new = state("new")
    members = commit(remote, "000001-0001", new)
    proxy.requests.clear()

    refresh_flyte_native(remote, "000001-0001", members)

    parts = [line for line in proxy.requests if "partNumber" in line]
    reads = [line for line in proxy.requests if line.startswith("GET")]
    assert sorted(line.split("?")[0].rsplit("/", 1)[-1] for line in parts) == ["a.bin", "c"]
    assert len(reads) == 1  # of sub/b.bin; an empty one has nothing to read


@pytest.mark.parametrize("kind", [Kind.RESET, Kind.LOST_ANSWER])
def test_a_view_on_s3_is_old_or_new_when_the_line_breaks(
    remote: BucketPlace, proxy: Proxy, tmp_path: Path, kind: Kind
) -> None:
    old, new = state("old"), state("new")
    refresh_flyte_native(remote, "000001-0001", commit(remote, "000001-0001", old))
    members = commit(remote, "000002-0001", new)
    proxy.inject(Fault(kind), method="PUT", containing="/attempt/")
    proxy.inject(Fault(kind), method="POST", containing="/attempt/")

    with pytest.raises(StoreError):
        refresh_flyte_native(remote, "000002-0001", members)
    proxy.heal()

    found = shown(remote, "tree", tmp_path / "out")
    assert found.keys() == old.keys()
    assert all(data in {old[name], new[name]} for name, data in found.items())


@pytest.fixture(params=["s3", "plain"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    if request.param == "s3":
        found: BucketPlace = request.getfixturevalue("remote")
        return found.bucket
    return ObstoreBucket(LocalStore(tmp_path), "az://stand-in", retry_policy=RetryPolicy(attempts=1))


@pytest.mark.parametrize("whole", [3 * MIB, 7 * MIB])
@pytest.mark.parametrize(("start", "size"), [(0, 0), (0, 1), (4096, 5000), (4097, 2 * MIB + 3), (MIB, None), (0, None)])
def test_a_range_of_an_object_becomes_another(bucket: Bucket, whole: int, start: int, size: int | None) -> None:
    key, target = f"range-{next(_numbers)}", f"target-{next(_numbers)}"
    data = content("range", whole)
    size = whole - start if size is None else size
    for name, old in ((key, data), (target, b"old" * 4000)):
        sink = bucket.begin(name, len(old))
        sink.write_at(0, memoryview(old))
        sink.commit(overwrite=False)
    facts = bucket.find(key)
    assert facts is not None

    bucket.copy_range(facts, start, size, target)

    copied = bucket.find(target)
    assert copied is not None and copied.size == size
    found = bytearray(size)
    if size:
        bucket.source(copied).read_into(0, memoryview(found))
    assert found == data[start : start + size]


@pytest.mark.parametrize("size", [9, 2 * MIB])
def test_a_range_of_an_object_that_was_replaced_is_not_copied(remote: BucketPlace, proxy: Proxy, size: int) -> None:
    put(remote, "source", content("first", 6 * MIB))
    facts = remote.bucket.find(f"{remote.key}/source")
    assert facts is not None
    put(remote, "source", content("second", 6 * MIB))
    # What S3 answers to a copy under a condition, and its stand-in does not.
    proxy.inject(Fault(Kind.STATUS, 412, "PreconditionFailed"), method="PUT", containing="partNumber")

    with pytest.raises(StoreError, match="was replaced"):
        remote.bucket.copy_range(facts, 0, size, f"{remote.key}/target")

    assert remote.bucket.find(f"{remote.key}/target") is None


def test_plain_buckets_say_what_is_too_large(tmp_path: Path) -> None:
    bucket = ObstoreBucket(LocalStore(tmp_path), "az://stand-in", retry_policy=RetryPolicy(attempts=1))
    (tmp_path / "a").write_bytes(b"x")
    facts = bucket.find("a")
    assert facts is not None

    with pytest.raises(StoreError, match="too large"):
        bucket.copy_range(facts, 0, MAX_BYTES + 1, "b")
