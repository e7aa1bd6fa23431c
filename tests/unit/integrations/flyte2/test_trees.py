"""Directories as one object: what goes in comes out, and what should not come out does not."""

from __future__ import annotations

import errno
import io
import os
import socket
import tarfile
from pathlib import Path

import pytest

from chockstone.checkpoints.errors import CheckpointError, DamagedArchive, LocalResourceError
from chockstone.integrations.flyte2 import trees
from chockstone.integrations.flyte2.trees import pack, packed, unpack


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    return tmp_path / "tree"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def through(tree: Path, out: Path, tmp_path: Path) -> Path:
    pack(tree, tmp_path / "object")
    assert unpack(tmp_path / "object", out, is_tree=True) == out
    return out


def tar_of(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)) if member.isreg() else None)
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, *, target: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, size
    return info


def test_names_contents_times_modes_and_empty_folders_come_back(tree: Path, out: Path, tmp_path: Path) -> None:
    (tree / "empty").mkdir()
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "er" / "ünïcode and space").write_bytes(b"1")
    (tree / "manifest.json").write_bytes(b"2")
    (tree / "COMMIT").write_bytes(b"")
    (tree / "run.sh").write_bytes(b"3")
    (tree / "run.sh").chmod(0o755)
    os.utime(tree / "run.sh", (1234, 1234))

    through(tree, out, tmp_path)

    assert sorted(str(path.relative_to(out)) for path in out.rglob("*")) == sorted(
        str(path.relative_to(tree)) for path in tree.rglob("*")
    )
    assert (out / "deep" / "er" / "ünïcode and space").read_bytes() == b"1"
    assert (out / "run.sh").stat().st_mtime == 1234
    assert os.access(out / "run.sh", os.X_OK)


def test_links_inside_stay_links_and_links_to_files_elsewhere_become_files(
    tree: Path, out: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").write_bytes(b"weights")
    (tree / "sub").mkdir()
    (tree / "real").write_bytes(b"1")
    (tree / "last.ckpt").symlink_to("real")
    (tree / "sub" / "up").symlink_to("../real")
    (tree / "folder").symlink_to("sub")
    (tree / "hard").hardlink_to(tree / "real")
    (tree / "out").symlink_to(tmp_path / "elsewhere")
    (tree / "relative").symlink_to("../elsewhere")

    through(tree, out, tmp_path)

    assert {path.name for path in out.rglob("*") if path.is_symlink()} == {"last.ckpt", "up", "folder"}
    assert (out / "last.ckpt").read_bytes() == (out / "sub" / "up").read_bytes() == b"1"
    assert (out / "hard").read_bytes() == b"1"
    assert (out / "out").read_bytes() == (out / "relative").read_bytes() == b"weights"


@pytest.mark.parametrize("target", ["/nonexistent", "..", "../missing"])
def test_a_link_out_that_leads_to_no_file_is_refused_when_it_is_saved(tree: Path, tmp_path: Path, target: str) -> None:
    (tree / "bad").symlink_to(target)

    with pytest.raises(CheckpointError, match="bad"):
        pack(tree, tmp_path / "object")


def test_what_is_no_file_is_refused_or_left_out_when_it_is_saved(tree: Path, out: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(tree)
        server.bind("socket")
        through(tree, out, tmp_path)
    assert list(out.iterdir()) == []
    os.mkfifo(tree / "pipe")

    with pytest.raises(CheckpointError, match="pipe"):
        pack(tree, tmp_path / "object")


def test_a_file_that_changes_meanwhile_is_refused(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "growing").write_bytes(b"1")
    real = tarfile.TarFile.addfile

    def grows(self: tarfile.TarFile, info: tarfile.TarInfo, file: object = None) -> None:
        real(self, info, file)  # type: ignore[arg-type]
        with (tree / "growing").open("ab") as growing:
            growing.write(b"2")

    monkeypatch.setattr(tarfile.TarFile, "addfile", grows)

    with pytest.raises(CheckpointError, match="changed while"):
        pack(tree, tmp_path / "object")


def test_a_packed_directory_leaves_no_temporary_file(tree: Path) -> None:
    with packed(tree) as (name, path):
        assert name == "tree.tar.gz"
        assert isinstance(path, Path)
        assert path.exists()

    assert not path.exists()


def test_a_link_to_a_file_is_saved_as_the_file(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"1")
    (tmp_path / "link").symlink_to("real")

    with packed(tmp_path / "link") as (name, path):
        assert (name, path) == ("payload", tmp_path / "real")


HOSTILE = {
    "up": [member("../x")],
    "absolute": [member("/x")],
    "absolute, after a good one": [member("good"), member("//x")],
    "absolute and long": [member("/" + "x" * 150)],  # its name is in a record before it
    "absolute folder": [member("/folder", tarfile.DIRTYPE)],
    "link of an absolute name": [member("/link", tarfile.SYMTYPE, target="x")],
    "hard link of an absolute name": [member("x"), member("/hard", tarfile.LNKTYPE, target="x")],
    "absolute hard link": [member("x"), member("hard", tarfile.LNKTYPE, target="/x")],
    "device": [member("null", tarfile.CHRTYPE)],
    "pipe": [member("pipe", tarfile.FIFOTYPE)],
    "absolute link": [member("link", tarfile.SYMTYPE, target="/etc")],
    "link up": [member("link", tarfile.SYMTYPE, target="../..")],
    "hard link out": [member("hard", tarfile.LNKTYPE, target="../secret")],
    "hard link to nothing": [member("hard", tarfile.LNKTYPE, target="missing")],
    "through a link": [
        member("a", tarfile.SYMTYPE, target="."),
        member("a/b", tarfile.SYMTYPE, target=".."),
    ],
    "file over folder": [member("a/b"), member("a")],
    "folder over file": [member("a"), member("a/b")],
    "endless name": [member("x" * 5000)],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE)
def test_hostile_tars_are_damaged_and_write_nothing_outside(
    members: list[tarfile.TarInfo], out: Path, tmp_path: Path
) -> None:
    found = tar_of(tmp_path / "object", *members)
    before = sorted(tmp_path.iterdir())

    with pytest.raises(DamagedArchive):
        unpack(found, out, is_tree=None)

    assert sorted(tmp_path.iterdir()) == before


def test_a_file_is_never_written_through_a_link_of_the_same_tar(out: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    found = tar_of(tmp_path / "object", member("a", tarfile.SYMTYPE, target="../victim"), member("a/x", size=1))

    with pytest.raises(DamagedArchive):
        unpack(found, out, is_tree=None)

    assert list((tmp_path / "victim").iterdir()) == []


def test_a_claim_of_more_bytes_than_the_object_could_hold_is_refused(out: Path, tmp_path: Path) -> None:
    sparse = member("hole", tarfile.GNUTYPE_SPARSE)
    header = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"00000000000\0"
    header[483:495] = b"77777777777\0"  # the size it would have
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "object").write_bytes(bytes(header) + bytes(1024))

    with pytest.raises(DamagedArchive):
        unpack(tmp_path / "object", out, is_tree=None)

    assert sum(path.stat().st_size for path in out.iterdir()) == 0


def test_an_object_without_bytes_is_nothing(out: Path, tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(b"")

    assert unpack(tmp_path / "object", out, is_tree=None) is None


def test_a_payload_that_begins_like_a_gzip_is_a_payload_if_it_is_known_to_be_whole(out: Path, tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\3")

    assert unpack(tmp_path / "object", out, is_tree=False) == out / "payload"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EMFILE])
def test_our_own_disk_is_not_the_objects_fault(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    found = tar_of(tmp_path / "object", member("a", size=1))

    def refuses(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(trees.tarfile.TarFile, "makefile", refuses)

    with pytest.raises(LocalResourceError):
        unpack(found, out, is_tree=None)
