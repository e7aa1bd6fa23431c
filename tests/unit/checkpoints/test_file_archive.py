from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from chockstone.checkpoints import Archive
from chockstone.checkpoints.errors import (
    CheckpointError,
    CheckpointExists,
    DamagedArchive,
    DigestMismatch,
    LocalResourceError,
    SaveAbandoned,
)
from chockstone.checkpoints.file_archive import extract_files, list_files, write_files
from chockstone.checkpoints.format.layout import MAX_MEMBERS
from chockstone.checkpoints.reading.archive import read_head
from chockstone.checkpoints.restoring import export
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import Store
from support.checkpoints.file_archives import MIB, NOON, SIZES, assert_nothing_is_left, content, make_files


def contents_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("small_chunks")
def test_files_come_back_with_the_same_bytes(store: Store, tmp_path: Path) -> None:
    files = make_files(tmp_path / "mine")
    written: list[int] = []
    read: list[int] = []
    (tmp_path / "out").mkdir()

    saved = write_files(store, "000001-0001", files, step=7, created_at=NOON, on_bytes=written.append)
    with Archive(store.open("000001-0001")) as archive:
        extract_files(archive, tmp_path / "out", on_bytes=read.append)

    assert contents_below(tmp_path / "out") == {name: content(name, size) for name, size in SIZES.items()}
    assert archive.blocks_verified == archive.layout.block_count > 4
    assert (archive.manifest.kind, archive.manifest.step, archive.manifest.created_at) == ("files", 7, NOON)
    assert saved.size_bytes == sum(written) == store.stat("000001-0001").size
    assert sum(read) == sum(SIZES.values())


@pytest.mark.usefixtures("small_chunks")
def test_every_tar_reader_reads_them(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    write_files(store, "one", make_files(tmp_path / "mine"), created_at=NOON)

    with tarfile.open(store.path("one")) as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]

    assert {name: found[name] for name in SIZES} == {name: content(name, size) for name, size in SIZES.items()}
    assert set(found) == {*SIZES, "manifest.json", "COMMIT"}


def test_the_seal_is_the_digest_that_commit_binds(store: Store, tmp_path: Path) -> None:
    saved = write_files(store, "one", {"a": b"1"}, metadata={"chain": {"attempt": None}}, created_at=NOON)
    other = write_files(store, "two", {"a": b"2"}, metadata={"chain": {"attempt": None}}, created_at=NOON)

    source = store.open("one")
    raw = bytearray(source.size)
    source.read_into(0, memoryview(raw))
    assert saved.seal.encode() in raw
    assert read_head(source).seal == saved.seal != other.seal
    with Archive(source) as archive:
        assert archive.seal == saved.seal
        assert archive.manifest.metadata == {"chain": {"attempt": None}}


def test_an_archive_may_hold_no_files(store: Store, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    write_files(store, "none", {}, kind="forward", created_at=NOON)

    with Archive(store.open("none")) as archive:
        extract_files(archive, tmp_path / "out")
        assert (archive.manifest.kind, dict(archive.members)) == ("forward", {})
    assert os.listdir(tmp_path / "out") == []


def test_ten_thousand_files_fit_and_one_more_does_not(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    (tmp_path / "out").mkdir()
    files: dict[str, Path | bytes] = {f"part-{number}": str(number).encode() for number in range(MAX_MEMBERS - 500)}
    for number in range(500):
        path = tmp_path / f"{number}"
        path.write_text(f"on disk {number}")
        files[f"disk/{number}"] = path

    write_files(store, "many", files, created_at=NOON)

    with Archive(store.open("many")) as archive:
        extract_files(archive, tmp_path / "out", names=["part-9499", "disk/499"])
    assert contents_below(tmp_path / "out") == {"part-9499": b"9499", "disk/499": b"on disk 499"}
    with pytest.raises(CheckpointError, match="10001 members"):
        write_files(store, "more", {**files, "extra": b""}, created_at=NOON)


@pytest.mark.parametrize(
    "name", ["a b.bin", "gewicht-ü", "../x", "/etc/x", "a//b", ".", "..", "a/../b", "", "COMMIT", "n" * 300]
)
def test_a_name_that_archives_do_not_take_is_an_error_that_says_it(tmp_path: Path, name: str) -> None:
    store = FileStore(tmp_path / "store")

    with pytest.raises(CheckpointError) as caught:
        write_files(store, "one", {"good": b"", name: b"x"}, created_at=NOON)

    assert repr(name[:80]) in str(caught.value)
    assert not store.root.exists()


@pytest.mark.parametrize("names", [("a", "A"), ("a", "a/b")])
def test_names_that_mean_one_file_on_some_systems_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    with pytest.raises(CheckpointError, match="'[aA]'"):
        write_files(FileStore(tmp_path), "one", dict.fromkeys(names, b""), created_at=NOON)


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "nothing"])
def test_only_regular_files_are_saved(tmp_path: Path, kind: str) -> None:
    store = FileStore(tmp_path / "store")
    path = tmp_path / "odd one"
    if kind == "link":
        (tmp_path / "target").write_text("x")
        path.symlink_to(tmp_path / "target")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)

    with pytest.raises(CheckpointError, match="odd one"):
        write_files(store, "one", {"a": path}, created_at=NOON)

    assert_nothing_is_left(store)


def test_an_unreadable_file_is_trouble_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "store")
    (tmp_path / "a").write_text("x")
    real_open = os.open

    def refuse(path: object, *args: object, **options: object) -> int:
        if str(path) == str(tmp_path / "a"):
            raise OSError(errno.EMFILE, "too many open files")
        return real_open(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(LocalResourceError, match=r"cannot read '.*/a' to save it.*ulimit"):
        write_files(store, "one", {"a": tmp_path / "a"}, created_at=NOON)
    monkeypatch.undo()

    assert_nothing_is_left(store)


def test_a_taken_name_stays_what_it_was(store: Store) -> None:
    first = write_files(store, "one", {"a": b"first"}, created_at=NOON)

    with pytest.raises(CheckpointExists):
        write_files(store, "one", {"a": b"second"}, created_at=NOON)

    with Archive(store.open("one")) as archive:
        assert (archive.read("a"), archive.seal) == (b"first", first.seal)


def test_an_abandoned_save_leaves_nothing(store: Store) -> None:
    with pytest.raises(SaveAbandoned):
        write_files(store, "one", {"a": b"x"}, created_at=NOON, is_abandoned=lambda: True)

    assert_nothing_is_left(store)


def test_metadata_must_be_plain_json(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="metadata is not plain JSON"):
        write_files(FileStore(tmp_path), "one", {}, metadata={"x": object()}, created_at=NOON)


def test_links_in_a_folder_stand_for_what_they_point_to(tmp_path: Path) -> None:
    mine, outside = tmp_path / "mine", tmp_path / "outside"
    (mine / "step-10").mkdir(parents=True)
    (mine / "empty").mkdir()
    (mine / "step-10" / "w.bin").write_bytes(b"weights")
    outside.write_bytes(b"elsewhere")
    (mine / "latest").symlink_to("step-10")
    (mine / "latest.bin").symlink_to("step-10/w.bin")
    (mine / "out.bin").symlink_to(outside)
    store = FileStore(tmp_path / "store")

    write_files(store, "one", list_files(mine), created_at=NOON)

    with Archive(store.open("one")) as archive:
        assert {name: archive.read(name) for name in archive.members} == {
            "latest.bin": b"weights",
            "latest/w.bin": b"weights",
            "out.bin": b"elsewhere",
            "step-10/w.bin": b"weights",
        }


@pytest.mark.parametrize("kind", ["dangling", "circle", "loop", "pipe", "gone"])
def test_a_folder_that_cannot_be_saved_says_why(tmp_path: Path, kind: str) -> None:
    mine = tmp_path / "mine"
    if kind != "gone":
        (mine / "sub").mkdir(parents=True)
    if kind == "dangling":
        (mine / "odd").symlink_to("nowhere")
    elif kind == "circle":
        (mine / "odd").symlink_to("odd")
    elif kind == "loop":
        (mine / "sub" / "odd").symlink_to(mine)
    elif kind == "pipe":
        os.mkfifo(mine / "odd")

    with pytest.raises(CheckpointError, match="odd" if kind != "gone" else "mine"):
        list_files(mine)


@pytest.fixture
def archived(tmp_path: Path) -> Iterator[Archive]:
    store = FileStore(tmp_path / "store")
    write_files(store, "one", make_files(tmp_path / "mine"), created_at=NOON)
    with Archive(store.open("one")) as archive:
        yield archive


def test_members_may_be_chosen_and_must_be_there(archived: Archive, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    extract_files(archived, tmp_path / "out", names=["sub/block", "empty"])
    with pytest.raises(DamagedArchive, match="should hold 'lost'"):
        extract_files(archived, tmp_path / "out", names=["one", "lost"])

    assert set(contents_below(tmp_path / "out")) == {"sub/block", "empty"}


def test_damage_is_found_before_it_is_written(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    write_files(store, "one", {"a": bytes(3 * MIB)}, created_at=NOON)
    with store.path("one").open("r+b") as file:
        file.seek(2 * MIB)
        file.write(b"!")
    (tmp_path / "out").mkdir()

    with Archive(store.open("one")) as archive, pytest.raises(DigestMismatch):
        extract_files(archive, tmp_path / "out")

    assert b"!" not in (tmp_path / "out" / "a").read_bytes()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_is_not_the_fault_of_the_archive(
    archived: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(export, "write_whole", fail)

    with pytest.raises(LocalResourceError, match=r"cannot extract files to '.*/out'"):
        extract_files(archived, tmp_path / "out")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EROFS, errno.ENOSPC])
def test_files_that_cannot_be_made_are_not_the_fault_of_the_archive(
    archived: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real_open = os.open

    def fail(path: object, flags: int, *args: object, **options: object) -> int:
        if flags & os.O_CREAT:
            raise OSError(number, os.strerror(number))
        return real_open(path, flags, *args, **options)  # type: ignore[arg-type]

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os, "open", fail)

    with pytest.raises(LocalResourceError):
        extract_files(archived, tmp_path / "out")


def test_a_directory_that_is_not_there_is_trouble_of_ours(archived: Archive, tmp_path: Path) -> None:
    with pytest.raises(LocalResourceError):
        extract_files(archived, tmp_path / "nowhere")


@pytest.mark.parametrize("planted", ["one", "sub"])
def test_no_link_leads_out_of_the_directory(archived: Archive, tmp_path: Path, planted: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "out" / planted).symlink_to(tmp_path / ("elsewhere" if planted == "sub" else "victim"))

    with pytest.raises(LocalResourceError):
        extract_files(archived, tmp_path / "out")

    assert os.listdir(tmp_path / "elsewhere") == []
    assert (tmp_path / "victim").read_text() == "mine"


_FRUGAL = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from chockstone.checkpoints import Archive, open_store
from chockstone.checkpoints.saving import writer
from chockstone.checkpoints.file_archive import extract_files, write_files

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024

url, file, out = sys.argv[1:4]
writer.CHUNK_BYTES = int(sys.argv[4])
store = open_store(url)
list(store.entries())
before = peak()
write_files(store, "large", {"w.bin": Path(file)}, created_at=datetime(2026, 1, 1, tzinfo=UTC))
between = peak()
with Archive(store.open("large")) as archive:
    extract_files(archive, Path(out))
print(between - before, peak() - before)
"""


@pytest.mark.parametrize(
    ("store", "size", "chunk", "limit"),
    [("file", 200, 32, 100), ("s3", 96, 1, 85)],  # on S3 parts of 8 MiB wait, too; large uploads take its stand-in long
    indirect=["store"],
)
def test_a_large_file_is_never_in_memory(store: Store, tmp_path: Path, size: int, chunk: int, limit: int) -> None:
    path, out = tmp_path / "w.bin", tmp_path / "out"
    path.write_bytes(b"".join(b"%d" % number * 100_000 for number in range(size // 2)))
    os.truncate(path, size * MIB)
    out.mkdir()

    command = [sys.executable, "-c", _FRUGAL, store.url, str(path), str(out), str(chunk * MIB)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    assert done.returncode == 0, done.stderr
    assert max(map(int, done.stdout.split())) < limit, done.stdout
    with path.open("rb") as mine, (out / "w.bin").open("rb") as theirs:
        assert hashlib.file_digest(mine, "sha256").digest() == hashlib.file_digest(theirs, "sha256").digest()
