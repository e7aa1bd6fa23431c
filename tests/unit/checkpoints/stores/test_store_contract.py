"""What every store must hold to, whatever is behind it: a directory, S3, or another object store."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from chockstone.checkpoints.errors import (
    CheckpointExists,
    CheckpointMissing,
    InvalidName,
    StoreError,
    TruncatedArchive,
)
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.stores.bucket import Bucket, RetryPolicy
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.checkpoints.stores.store import Store, open_store
from support.loopback_s3 import make_bucket, s3_server, set_environment

SMALL = 8 * PAGE
LARGE = 2 * 8 * 1024**2 + 3 * PAGE  # three parts on S3
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
THREADS = 6

_prefixes = (f"test-{number}" for number in count())


@dataclass(frozen=True, slots=True)
class S3:
    bucket: Bucket
    url: str


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as url, pytest.MonkeyPatch.context() as monkeypatch:
        make_bucket(url, "contract")
        set_environment(monkeypatch, url)
        yield S3(ObjectStore.from_url("s3://contract")._bucket, "s3://contract")


@pytest.fixture(params=["file", "s3", "plain"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A fresh store of each kind. "plain" is the code for gs:// and az://, on obstore's local store."""
    if request.param == "file":
        return FileStore(tmp_path / "store")
    if request.param == "s3":
        s3: S3 = request.getfixturevalue("s3")
        return ObjectStore(s3.bucket, next(_prefixes))
    local = pytest.importorskip("obstore.store").LocalStore(tmp_path)
    bucket = pytest.importorskip("chockstone.checkpoints.stores.obstore_bucket").ObstoreBucket
    return ObjectStore(bucket(local, "az://stand-in", retry_policy=RetryPolicy()), "store")


def pattern(seed: int, size: int) -> bytes:
    """Pages that differ from each other and from those of other seeds."""
    return b"".join(b"%08d-%07d" % (seed, page) * (PAGE // 16) for page in range(size // PAGE))


def save(store: Store, name: str, content: bytes, *, overwrite: bool = False) -> None:
    sink = store.begin(name, len(content))
    try:
        sink.write_at(PAGE, memoryview(content)[PAGE:])
        sink.write_at(0, memoryview(content)[:PAGE])
        sink.commit(overwrite=overwrite)
    finally:
        sink.abort()


def load(store: Store, name: str) -> bytes:
    source = store.open(name)
    try:
        content = bytearray(source.size)
        source.read_into(0, memoryview(content))
        return bytes(content)
    finally:
        source.close()


def names(store: Store, prefix: str = "") -> list[str]:
    return [entry.name for entry in store.entries(prefix)]


def at_once(work: Callable[[int], object]) -> list[object]:
    """What ``work`` gave in each of several threads that started together."""
    barrier = threading.Barrier(THREADS)

    def run(index: int) -> object:
        barrier.wait()
        try:
            return work(index)
        except StoreError as error:
            return error

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


@SIZES
def test_what_was_committed_is_read_back(store: Store, size: int) -> None:
    content = pattern(1, size)

    save(store, "run/step-1", content)

    assert load(store, "run/step-1") == content


def test_writes_may_come_in_any_order_from_several_threads_that_reuse_their_memory(store: Store) -> None:
    content = pattern(1, LARGE)
    chunk = 37 * PAGE
    starts = sorted(range(PAGE, LARGE, chunk), key=lambda start: start * 7919 % 104729)
    sink = store.begin("shuffled", LARGE)

    def write(part: list[int]) -> None:
        memory = bytearray(chunk)
        for start in part:
            piece = content[start : start + chunk]
            memory[: len(piece)] = piece
            sink.write_at(start, memoryview(memory)[: len(piece)])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, [starts[0::3], starts[1::3], starts[2::3]]))
    sink.write_at(0, memoryview(content)[:PAGE])
    sink.commit(overwrite=False)

    assert load(store, "shuffled") == content


def test_several_threads_may_read_one_source(store: Store) -> None:
    content = pattern(1, LARGE)
    save(store, "shared", content)
    source = store.open("shared")
    step = 101 * PAGE

    def read(start: int) -> bool:
        target = bytearray(min(step, LARGE - start))
        source.read_into(start, memoryview(target))
        return target == content[start : start + step]

    with ThreadPoolExecutor(4) as pool:
        same = list(pool.map(read, range(0, LARGE, step)))
    source.close()

    assert all(same)


@SIZES
def test_nothing_is_visible_before_commit_nor_after_abort(store: Store, size: int) -> None:
    content = memoryview(pattern(1, size))
    sink = store.begin("unfinished", size)
    sink.write_at(0, content)

    before = names(store)
    with pytest.raises(CheckpointMissing):
        store.stat("unfinished")
    sink.abort()
    sink.abort()

    assert before == names(store) == []
    assert store.sweep() == []


@SIZES
def test_abort_after_commit_is_harmless(store: Store, size: int) -> None:
    content = pattern(1, size)
    sink = store.begin("kept", size)
    sink.write_at(0, memoryview(content))
    sink.commit(overwrite=False)

    sink.abort()

    assert load(store, "kept") == content


@SIZES
def test_a_name_is_taken_once(store: Store, size: int) -> None:
    save(store, "taken", pattern(1, size))

    with pytest.raises(CheckpointExists, match="taken"):
        save(store, "taken", pattern(2, size))

    assert load(store, "taken") == pattern(1, size)
    assert store.sweep() == []


@SIZES
def test_of_racing_commits_one_wins_and_the_others_are_told(store: Store, size: int) -> None:
    outcomes = at_once(lambda index: save(store, "race", pattern(index, size)))

    winners = [index for index, outcome in enumerate(outcomes) if outcome is None]
    losers = [outcome for outcome in outcomes if outcome is not None]
    assert len(winners) == 1
    assert all(isinstance(loser, CheckpointExists) for loser in losers)
    assert load(store, "race") == pattern(winners[0], size)
    assert store.sweep() == []


@SIZES
def test_an_overwrite_replaces_the_archive(store: Store, size: int) -> None:
    save(store, "again", pattern(1, size))

    save(store, "again", pattern(2, size), overwrite=True)

    assert load(store, "again") == pattern(2, size)


def test_a_reader_during_overwrites_sees_one_archive_whole_or_an_error(store: Store) -> None:
    save(store, "latest", pattern(0, SMALL))
    done = threading.Event()

    def overwrite() -> None:
        for seed in range(1, 30):
            save(store, "latest", pattern(seed, SMALL), overwrite=True)
        done.set()

    whole: list[bytes] = []
    failures: list[StoreError] = []
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(overwrite)
        while not done.is_set() and not writing.done():
            try:
                whole.append(load_in_pieces(store, "latest"))
            except StoreError as error:
                failures.append(error)
        writing.result()

    allowed = {pattern(seed, SMALL) for seed in range(30)}
    assert set(whole) <= allowed
    assert all("replaced while it was being read" in str(error) for error in failures)
    assert load(store, "latest") == pattern(29, SMALL)


def load_in_pieces(store: Store, name: str) -> bytes:
    source = store.open(name)
    content = bytearray(source.size)
    try:
        for start in range(0, source.size, PAGE):
            source.read_into(start, memoryview(content)[start : start + PAGE])
    finally:
        source.close()
    return bytes(content)


def test_deleting_twice_removes_once(store: Store) -> None:
    save(store, "old", pattern(1, SMALL))

    first, second = store.delete("old"), store.delete("old")

    assert (first, second) == (True, False)
    assert names(store) == []


def test_of_concurrent_deletes_one_removed_it_and_none_fails(store: Store) -> None:
    save(store, "old", pattern(1, SMALL))

    outcomes = at_once(lambda _: store.delete("old"))

    assert sorted(map(str, outcomes)) == ["False"] * (THREADS - 1) + ["True"]
    assert names(store) == []


def test_a_deleted_name_can_be_taken_again(store: Store) -> None:
    save(store, "name", pattern(1, SMALL))
    store.delete("name")

    save(store, "name", pattern(2, SMALL))

    assert load(store, "name") == pattern(2, SMALL)


@SIZES
def test_a_copy_outlives_its_original(store: Store, size: int) -> None:
    save(store, "run/step-1", pattern(1, size))

    store.copy("run/step-1", "kept/best")
    store.delete("run/step-1")

    assert names(store) == ["kept/best"]
    assert load(store, "kept/best") == pattern(1, size)


def test_a_copy_takes_no_name_that_is_taken(store: Store) -> None:
    save(store, "one", pattern(1, SMALL))
    save(store, "two", pattern(2, SMALL))

    with pytest.raises(CheckpointExists, match="two"):
        store.copy("one", "two")

    assert load(store, "two") == pattern(2, SMALL)
    assert store.sweep() == []


def test_a_copy_overwrites_when_asked(store: Store) -> None:
    save(store, "one", pattern(1, SMALL))
    save(store, "two", pattern(2, SMALL))

    store.copy("one", "two", overwrite=True)
    store.copy("one", "one", overwrite=True)

    assert load(store, "one") == load(store, "two") == pattern(1, SMALL)


def test_of_racing_copies_one_wins(store: Store) -> None:
    for index in range(THREADS):
        save(store, f"source-{index}", pattern(index, SMALL))

    outcomes = at_once(lambda index: store.copy(f"source-{index}", "target"))

    winners = [index for index, outcome in enumerate(outcomes) if outcome is None]
    assert len(winners) == 1
    assert sum(isinstance(outcome, CheckpointExists) for outcome in outcomes) == THREADS - 1
    assert load(store, "target") == pattern(winners[0], SMALL)


def test_entries_are_sorted_by_name_with_their_sizes_and_times(store: Store) -> None:
    before = datetime.now(UTC) - timedelta(seconds=2)  # object stores keep whole seconds
    for name in ["a-b", "a", "b/step-10", "b/step-2", "B"]:
        save(store, name, pattern(1, SMALL))

    found = list(store.entries())

    assert [entry.name for entry in found] == ["B", "a", "a-b", "b/step-10", "b/step-2"]
    assert {entry.size for entry in found} == {SMALL}
    assert all(before <= entry.modified_at <= datetime.now(UTC) + timedelta(seconds=2) for entry in found)


def test_entries_below_a_prefix_are_those_at_it_or_behind_its_slash(store: Store) -> None:
    for name in ["run-1", "run-1/a", "run-1/b/c", "run-10/a", "run-2", "run"]:
        save(store, name, pattern(1, SMALL))

    assert names(store, "run-1") == ["run-1", "run-1/a", "run-1/b/c"]
    assert names(store, "nobody") == []


def test_stat_says_what_entries_say(store: Store) -> None:
    save(store, "run/step-1", pattern(1, SMALL))

    assert [store.stat("run/step-1")] == list(store.entries())


@pytest.mark.parametrize(
    "name",
    ["", "/", "a/", "/a", "a//b", "..", "a/../b", ".hidden", "a b", "ä", "a\\b", "a\n", "x" * 252, "a/" * 400 + "a"],
)
def test_names_that_could_leave_the_store_are_refused(store: Store, name: str) -> None:
    save(store, "sound", pattern(1, SMALL))

    for use in (
        lambda: store.begin(name, SMALL),
        lambda: store.open(name),
        lambda: store.stat(name),
        lambda: store.delete(name),
        lambda: store.copy(name, "target"),
        lambda: store.copy("sound", name),
    ):
        with pytest.raises(InvalidName, match="cannot name a checkpoint"):
            use()


def test_long_names_work(store: Store) -> None:
    name = "/".join(["d" * 100, "a..b", "_-" * 100 + "x" * 45])  # obstore's local store adds two characters of its own

    save(store, name, pattern(1, SMALL))

    assert names(store) == [name]
    assert load(store, name) == pattern(1, SMALL)


def test_what_is_not_there_is_missing_by_name(store: Store) -> None:
    for use in (lambda: store.open("absent"), lambda: store.stat("absent"), lambda: store.copy("absent", "target")):
        with pytest.raises(CheckpointMissing, match="absent"):
            use()
    assert store.delete("absent") is False


def test_reading_past_the_end_is_truncation(store: Store) -> None:
    save(store, "short", pattern(1, SMALL))
    source = store.open("short")

    with pytest.raises(TruncatedArchive):
        source.read_into(SMALL - PAGE, memoryview(bytearray(2 * PAGE)))
    source.close()


def test_a_write_under_way_is_spared_by_sweep(store: Store) -> None:
    content = memoryview(pattern(1, LARGE))
    sink = store.begin("slow", LARGE)
    sink.write_at(PAGE, content[PAGE:])

    swept = store.sweep()
    sink.write_at(0, content[:PAGE])
    sink.commit(overwrite=False)

    assert swept == []
    assert load(store, "slow") == content


_WRITER = """
import sys
from chockstone.checkpoints.stores.store import open_store
sink = open_store(sys.argv[1]).begin("run/killed", int(sys.argv[2]))
sink.write_at(4096, memoryview(bytes(int(sys.argv[2]) - 4096)))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_what_a_killed_writer_left_is_invisible_and_swept(kind: str, tmp_path: Path, s3: S3) -> None:
    url = tmp_path.as_uri() if kind == "file" else f"{s3.url}/{next(_prefixes)}"
    command = [sys.executable, "-c", _WRITER, url, str(LARGE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        writer.kill()
    store = open_store(url)

    seen = names(store)
    dry, swept, again = store.sweep(dry_run=True), store.sweep(), store.sweep()

    assert seen == []
    assert len(dry) == len(swept) == 1
    assert dry[0].place == swept[0].place
    assert "killed" in swept[0].place
    assert swept[0].size > 0
    assert again == []


def test_a_store_is_found_again_by_its_url(tmp_path: Path, s3: S3) -> None:
    for url in (tmp_path.as_uri(), f"{s3.url}/{next(_prefixes)}/deeper"):
        save(open_store(url), "here", pattern(1, SMALL))

        assert open_store(url).url == url
        assert names(open_store(open_store(url).url)) == ["here"]
