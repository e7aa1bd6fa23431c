"""One archive that several processes write: what they may rely on, and what is refused."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore

from chockstone.checkpoints.errors import CheckpointExists, CheckpointMissing, StoreError
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.stores.bucket import RequestFailed, RetryPolicy, explain
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.checkpoints.stores.obstore_bucket import ObstoreBucket
from chockstone.checkpoints.stores.s3_upload import PART_BYTES
from chockstone.checkpoints.stores.shared_writes import Extents
from chockstone.checkpoints.stores.store import SharedSink, Store, open_store
from support.loopback_s3 import make_bucket, s3_server, set_environment

NAME = "run/step-1"
SIZE = 2 * PART_BYTES + 5 * PAGE  # three parts on S3
CONTENT = b"".join(b"%015d\n" % page * (PAGE // 16) for page in range(SIZE // PAGE))
PARTS = [(start, min(start + PART_BYTES, SIZE)) for start in range(0, SIZE, PART_BYTES)]

_prefixes = (f"test-{number}" for number in count())


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as url, pytest.MonkeyPatch.context() as monkeypatch:
        make_bucket(url, "shared")
        set_environment(monkeypatch, url)
        yield "s3://shared"


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "file":
        return FileStore(tmp_path / "store")
    return open_store(f"{request.getfixturevalue('s3')}/{next(_prefixes)}")


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.fixture
def bucket(s3: str) -> Store:
    return open_store(f"{s3}/{next(_prefixes)}")


JOINER = """
import json, sys
from chockstone.checkpoints.stores.store import open_store
url, name, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
work = json.loads(sys.stdin.readline())
sink = open_store(url).join(name, size, work["ticket"])
for start, end in work["ranges"]:
    pages = (b"%015d\\n" % page * 256 for page in range(start // 4096, end // 4096))
    sink.write_at(start, memoryview(b"".join(pages)))
    print("wrote", flush=True)
if work["finishes"]:
    print(sink.finish(), flush=True)
sys.stdin.read()
"""


@contextmanager
def joiner(
    store: Store, ticket: str, ranges: list[tuple[int, int]], *, finishes: bool = True
) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes these ranges, and lives until it is killed or the block ends."""
    command = [sys.executable, "-c", JOINER, store.url, NAME, str(SIZE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"ticket": ticket, "ranges": ranges, "finishes": finishes}) + "\n")
        process.stdin.flush()
        try:
            yield process
        finally:
            process.stdin.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def write(sink: Any, *ranges: tuple[int, int]) -> None:  # Any: a Sink or a SharedSink
    for start, end in ranges:
        sink.write_at(start, memoryview(CONTENT)[start:end])


def load(store: Store) -> bytes:
    source = store.open(NAME)
    try:
        content = bytearray(source.size)
        source.read_into(0, memoryview(content))
        return bytes(content)
    finally:
        source.close()


def names(store: Store) -> list[str]:
    return [entry.name for entry in store.entries()]


def test_three_processes_write_one_archive(store: Store) -> None:
    sink = store.begin(NAME, SIZE)
    ticket = sink.share()

    with joiner(store, ticket, [PARTS[1]]) as one, joiner(store, ticket, [PARTS[2]]) as two:
        write(sink, PARTS[0])
        assert [line(one), line(two)] == ["wrote"] * 2
        sink.settle([line(one), line(two)])
    sink.commit(overwrite=False)

    assert load(store) == CONTENT
    assert store.sweep() == []


def test_processes_may_divide_a_file_by_pages(files: FileStore) -> None:
    sink = files.begin(NAME, SIZE)
    ticket = sink.share()
    pages = [(start, start + PAGE) for start in range(0, 40 * PAGE, PAGE)]

    with joiner(files, ticket, pages[1::2]) as other:
        write(sink, *pages[0::2], (40 * PAGE, SIZE))
        receipt = [line(other) for _ in pages[1::2]] and line(other)
    sink.settle([receipt])
    sink.commit(overwrite=False)

    assert load(files) == CONTENT


def test_a_receipt_of_nothing_is_one(store: Store) -> None:
    sink = store.begin(NAME, SIZE)
    share = store.join(NAME, SIZE, sink.share())
    write(sink, (0, SIZE))

    sink.settle([share.finish()])
    sink.commit(overwrite=False)

    assert load(store) == CONTENT


def test_what_is_put_in_one_request_is_written_by_its_owner(bucket: Store) -> None:
    size = 4 * PAGE
    sink = bucket.begin("small", size)
    share = bucket.join("small", size, sink.share())
    sink.write_at(0, memoryview(CONTENT)[:size])

    with pytest.raises(StoreError, match="its owner writes all of it"):
        share.write_at(0, memoryview(CONTENT)[:PAGE])
    sink.settle([share.finish()])
    sink.commit(overwrite=False)

    assert names(bucket) == ["small"]


def test_a_unit_is_what_one_process_must_write_whole(files: FileStore, bucket: Store) -> None:
    assert files.unit_bytes(SIZE) == 1
    assert bucket.unit_bytes(SIZE) == PART_BYTES
    assert bucket.unit_bytes(PART_BYTES) == PART_BYTES
    assert bucket.unit_bytes(PAGE) == PAGE
    assert bucket.unit_bytes(10**12) > PART_BYTES


def test_stores_that_take_an_archive_in_one_request_refuse_others(tmp_path: Path) -> None:
    store = ObjectStore(ObstoreBucket(LocalStore(tmp_path), "gs://stand-in", retry_policy=RetryPolicy()))
    sink = store.begin(NAME, SIZE)

    for use in (sink.share, lambda: store.join(NAME, SIZE, "{}"), lambda: store.unit_bytes(SIZE)):
        with pytest.raises(StoreError, match="several processes can save to directories and s3:// only: gs://stand-in"):
            use()


def test_a_name_is_taken_once_by_several_as_by_one(store: Store) -> None:
    sinks = [store.begin(NAME, SIZE) for _ in range(2)]
    for sink in sinks:
        share = store.join(NAME, SIZE, sink.share())
        write(share, PARTS[1])
        write(sink, PARTS[0], PARTS[2])
        sink.settle([share.finish()])

    sinks[0].commit(overwrite=False)
    with pytest.raises(CheckpointExists):
        sinks[1].commit(overwrite=False)

    assert load(store) == CONTENT
    assert store.sweep() == []


def test_without_the_receipt_of_a_joiner_that_died_nothing_is_committed(store: Store) -> None:
    sink = store.begin(NAME, SIZE)
    ticket = sink.share()

    with joiner(store, ticket, PARTS[1:2], finishes=False) as other:
        assert line(other) == "wrote"
        other.kill()
    write(sink, PARTS[0], *PARTS[2:])
    with pytest.raises(StoreError, match=f"{PART_BYTES} bytes of it were never written; save it again"):
        sink.commit(overwrite=False)
    sink.abort()

    assert names(store) == []
    assert store.sweep() == []


OWNER = """
import sys
from chockstone.checkpoints.stores.store import open_store
sink = open_store(sys.argv[1]).begin(sys.argv[2], int(sys.argv[3]))
print(sink.share(), flush=True)
sys.stdin.read()
"""


def orphaned(store: Store) -> str:
    """The ticket of an owner that was killed."""
    command = [sys.executable, "-c", OWNER, store.url, NAME, str(SIZE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        ticket = line(owner)
        owner.kill()
    return ticket


def test_when_the_owner_died_a_sweep_removes_what_others_still_write(store: Store) -> None:
    share = store.join(NAME, SIZE, orphaned(store))
    write(share, PARTS[1])

    swept = store.sweep()

    assert len(swept) == 1
    assert "step-1" in swept[0].place
    assert store.sweep() == []
    with suppress(StoreError):  # a file lets it write on
        write(share, PARTS[2])
        share.finish()
    share.close()
    assert names(store) == []
    assert store.sweep() == []


def test_who_comes_after_the_sweep_is_told(files: FileStore) -> None:
    ticket = orphaned(files)
    files.sweep()

    with pytest.raises(StoreError, match="not there. Either the process that began it has ended, or this host"):
        files.join(NAME, SIZE, ticket)


TICKETS = {
    "no JSON": "ticket",
    "no object": "[]",
    "nothing": "",
    "deep": "[" * 10**5,
    "a field less": json.dumps({"archive": NAME, "size": SIZE}),
    "a field more": json.dumps({"archive": NAME, "size": SIZE, "place": "x", "more": 1}),
    "a size that is text": json.dumps({"archive": NAME, "size": str(SIZE), "place": "x"}),
    "a size that is true": json.dumps({"archive": NAME, "size": True, "place": "x"}),
    "a place that is none": json.dumps({"archive": NAME, "size": SIZE, "place": None}),
    "a long place": json.dumps({"archive": NAME, "size": SIZE, "place": "x" * 10_000}),
}


@pytest.mark.parametrize("ticket", TICKETS.values(), ids=TICKETS)
def test_what_is_no_ticket_is_refused(store: Store, ticket: str) -> None:
    with pytest.raises(StoreError, match="cannot join the writing of .* is no ticket"):
        store.join(NAME, SIZE, ticket)


def test_a_ticket_is_for_one_archive(store: Store) -> None:
    sink = store.begin(NAME, SIZE)
    ticket = sink.share()

    with pytest.raises(StoreError, match="the ticket is for .*run/step-1"):
        store.join("run/step-2", SIZE, ticket)
    with pytest.raises(StoreError, match=f"the ticket is for .* with {SIZE}; all processes must save the same state"):
        store.join(NAME, SIZE + PAGE, ticket)
    sink.abort()


@pytest.mark.parametrize("place", ["", "\0", "a\nb", "ä"])
def test_what_cannot_be_an_upload_is_refused(bucket: Store, place: str) -> None:
    sink = bucket.begin(NAME, SIZE)
    ticket = json.dumps({**json.loads(sink.share()), "place": place})

    with pytest.raises(StoreError, match="is no upload"):
        bucket.join(NAME, SIZE, ticket)
    sink.abort()


def test_an_upload_that_is_gone_says_who_may_have_done_it() -> None:
    gone = RequestFailed("the store answered 404 NoSuchUpload", status=404, code="NoSuchUpload")  # moto answers 500

    said = explain(gone, "cannot write it", bucket="s3://shared", permission="s3:PutObject")

    assert str(said).endswith(
        "its owner, a sweep or a lifecycle rule of the bucket discarded the upload; save it again"
    )


def forged(place: str) -> str:
    return json.dumps({"archive": NAME, "size": SIZE, "place": place})


@pytest.mark.parametrize(
    "place",
    [
        "",
        ".",
        "..",
        "../victim.tar",
        "../.partial/step-1-0123456789abcdef.tar",
        "/etc/passwd",
        "victim.tar",
        "step-1.tar",
        "step-1-0123456789abcdef.tar/../../victim.tar",
        "step-1-0123456789abcdef.tar\n",
        "step-1-0123456789abcdef.tar\0",
        "step-1-0123456789ABCDEF.tar",
        "step-2-0123456789abcdef.tar",
    ],
)
def test_a_ticket_opens_partial_files_of_its_archive_only(files: FileStore, place: str) -> None:
    partials = files.root / ".partial"
    partials.mkdir(parents=True)
    victims = [files.root / "victim.tar"]
    victims += [partials / name for name in ("victim.tar", "step-1.tar", "step-2-0123456789abcdef.tar")]
    for victim in victims:
        victim.write_bytes(CONTENT)

    with pytest.raises(StoreError, match="is no partial file of it"):
        files.join(NAME, SIZE, forged(place))

    assert all(victim.read_bytes() == CONTENT for victim in victims)


PLACE = "step-1-0123456789abcdef.tar"


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "short", "committed"])
def test_only_the_file_that_is_being_written_is_opened(files: FileStore, kind: str) -> None:
    partial, victim = files.root / ".partial" / PLACE, files.root / "victim.tar"
    partial.parent.mkdir(parents=True)
    victim.write_bytes(CONTENT)
    if kind == "link":
        partial.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(partial)
    elif kind == "directory":
        partial.mkdir()
    elif kind == "short":
        partial.write_bytes(CONTENT[:PAGE])
    else:
        os.link(victim, partial)  # what a commit leaves that is killed between its two steps

    with pytest.raises(StoreError, match="cannot join the writing of"):
        files.join(NAME, SIZE, forged(PLACE))

    assert victim.read_bytes() == CONTENT


def begun(store: Store) -> tuple[Any, SharedSink, str]:
    """A sink, a share in it that has written the rest, and the place of both."""
    sink = store.begin(NAME, SIZE)
    ticket = sink.share()
    share = store.join(NAME, SIZE, ticket)
    write(sink, PARTS[0])
    write(share, *PARTS[1:])
    return sink, share, json.loads(ticket)["place"]


def receipt(place: str, *ranges: tuple[object, ...]) -> str:
    return json.dumps({"place": place, "ranges": ranges})


RANGES: dict[str, list[tuple[object, ...]]] = {
    "before the start": [(-PAGE, PAGE, "e")],
    "behind the end": [(PARTS[2][0], SIZE + PAGE, "e")],
    "empty": [(PAGE, PAGE, "e")],
    "backwards": [(2 * PAGE, PAGE, "e")],
    "text": [("0", PAGE, "e")],
    "truth": [(False, True, "e")],
    "two fields": [(0, PAGE)],
    "no etag": [(0, PAGE, None)],
}


@pytest.mark.parametrize("ranges", RANGES.values(), ids=RANGES)
def test_a_receipt_that_cannot_be_right_is_refused(store: Store, ranges: list[tuple[object, ...]]) -> None:
    sink = store.begin(NAME, SIZE)
    place = json.loads(sink.share())["place"]

    with pytest.raises(StoreError, match="cannot commit .* is no receipt for a part of its"):
        sink.settle([receipt(place, *ranges)])
    sink.abort()


@pytest.mark.parametrize("text", ["", "receipt", "{}", "[]", "null", '{"place": 1, "ranges": []}', "[" * 10**5])
def test_what_is_no_receipt_is_refused(store: Store, text: str) -> None:
    sink = store.begin(NAME, SIZE)

    with pytest.raises(StoreError, match="is no receipt"):
        sink.settle([text])
    sink.abort()


def test_a_receipt_of_another_write_is_refused(store: Store) -> None:
    earlier, share, _ = begun(store)
    stale = share.finish()
    earlier.abort()
    sink = store.begin(NAME, SIZE)

    with pytest.raises(StoreError, match="a receipt is for another write"):
        sink.settle([stale])
    sink.abort()

    assert names(store) == []


def test_what_two_wrote_is_refused(store: Store) -> None:
    sink, share, _ = begun(store)
    twice = store.join(NAME, SIZE, sink.share())
    write(twice, PARTS[0])
    own, again = share.finish(), twice.finish()

    with pytest.raises(StoreError, match=f"two processes wrote its bytes 0 to {PARTS[0][1]}"):
        sink.settle([own, again])
    with pytest.raises(StoreError, match="two processes wrote"):
        sink.settle([own])
    sink.abort()


def test_a_receipt_for_less_than_all_is_not_enough(store: Store) -> None:
    sink, share, place = begun(store)
    share.finish()

    sink.settle([receipt(place)])
    with pytest.raises(StoreError, match=f"{SIZE - PARTS[0][1]} bytes of it were never written"):
        sink.commit(overwrite=False)
    sink.abort()

    with pytest.raises(CheckpointMissing):
        store.stat(NAME)


@pytest.mark.parametrize("ranges", [[(PARTS[1][0] + PAGE, PARTS[1][1], "e")], [(PARTS[1][0], SIZE, "e")]])
def test_what_is_no_part_is_refused(bucket: Store, ranges: list[tuple[object, ...]]) -> None:
    sink = bucket.begin(NAME, SIZE)
    place = json.loads(sink.share())["place"]

    with pytest.raises(StoreError, match="which are no part"):
        sink.settle([receipt(place, *ranges)])
    sink.abort()


def test_a_part_that_s3_does_not_know_is_not_committed(bucket: Store) -> None:
    sink, share, _ = begun(bucket)
    said = json.loads(share.finish())
    said["ranges"][0][2] = '"00000000000000000000000000000000"'

    sink.settle([json.dumps(said)])
    with pytest.raises(StoreError, match="InvalidPart"):
        sink.commit(overwrite=False)
    sink.abort()

    assert names(bucket) == []
    assert bucket.sweep() == []


def test_who_wrote_a_part_in_part_has_not_finished(bucket: Store) -> None:
    sink = bucket.begin(NAME, SIZE)
    share = bucket.join(NAME, SIZE, sink.share())
    write(share, (PARTS[1][0], PARTS[1][1] - PAGE))

    with pytest.raises(StoreError, match=f"{PAGE} bytes of parts that it began it did not write"):
        share.finish()
    sink.abort()


def test_a_share_ends_with_its_receipt(store: Store) -> None:
    sink, share, _ = begun(store)
    share.finish()

    with pytest.raises(StoreError, match="this process has finished its part of it"):
        write(share, PARTS[2])
    share.close()
    share.close()
    sink.abort()


def test_nobody_writes_behind_the_end(store: Store) -> None:
    sink = store.begin(NAME, SIZE)
    share = store.join(NAME, SIZE, sink.share())

    for writer in (sink, share):
        with pytest.raises(StoreError, match=f"was planned with {SIZE} bytes and got more"):
            writer.write_at(SIZE - PAGE, memoryview(CONTENT)[: 2 * PAGE])
    share.close()
    sink.abort()


def test_extents_know_what_was_there() -> None:
    chance = random.Random(1)
    for _ in range(300):
        extents, known = Extents(), set[int]()
        for _ in range(8):
            start = chance.randrange(20)
            end = chance.randrange(start, 21)

            was_new = extents.add(start, end)

            assert was_new == known.isdisjoint(range(start, end))
            known |= set(range(start, end))
            assert {byte for one in extents.ranges() for byte in range(one.start, one.end)} == known
            assert extents.missing(20) == 20 - len(known)
