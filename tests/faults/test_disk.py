"""Disks that are full, read-only, forbidden or out of descriptors: a clear error, and nothing lost."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import AdmissionRefused, StoreDenied, StoreError, StoreFull, StoreUnreachable
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import Sink

MEGABYTE = 1024**2


def needs_root() -> None:
    if os.geteuid() != 0:
        if os.environ.get("CI"):
            pytest.fail("this test mounts a small disk and needs root, which CI must have")
        pytest.skip("this test mounts a small disk, which needs root")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 16 MiB."""
    needs_root()
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(mount)], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def used_files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def state(megabytes: int, value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"x": torch.full((megabytes * MEGABYTE // 4,), value)}


class Boundless(FileStore):
    """A store that does not know its free space, so that the write itself runs into the end of the disk."""

    def free_bytes(self) -> int | None:
        return None


def test_a_save_that_cannot_fit_is_refused_before_it_is_written(small_disk: Path) -> None:
    with Checkpointer(small_disk) as checkpointer:
        with pytest.raises(AdmissionRefused, match="needs .* bytes and .* free"):
            checkpointer.save(state(20), step=1).result()

    assert used_files(small_disk) == []


def test_a_full_disk_keeps_what_is_there_and_leaves_no_partial_file(small_disk: Path) -> None:
    with Checkpointer(Boundless(small_disk)) as checkpointer:
        checkpointer.save(state(8), step=1).result()

        with pytest.raises(StoreFull, match="the disk is full; free space"):
            checkpointer.save(state(12, 2.0), step=2).result()

        assert used_files(small_disk) == ["step-00000001.tar"]
        assert checkpointer.load()["x"][0] == 1.0
        checkpointer.save(state(4, 3.0), step=3).result()


def test_a_disk_that_fills_in_the_middle_of_the_write_leaves_nothing(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_fallocate(*_: int) -> None:
        raise OSError(95, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", no_fallocate)
    with Checkpointer(Boundless(small_disk)) as checkpointer:
        with pytest.raises(StoreFull, match="cannot write .*: the disk is full"):
            checkpointer.save(state(32), step=1).result()

        assert used_files(small_disk) == []
        checkpointer.save(state(4), step=1).result()


def test_an_overwrite_that_fails_keeps_the_old_one(small_disk: Path) -> None:
    with Checkpointer(Boundless(small_disk)) as checkpointer:
        checkpointer.save(state(8), name="best").result()

        with pytest.raises(StoreFull):
            checkpointer.save(state(12, 2.0), name="best", overwrite=True).result()

        assert checkpointer.load(name="best")["x"][0] == 1.0


def test_a_read_only_disk_is_named_and_can_still_be_read(small_disk: Path) -> None:
    with Checkpointer(small_disk) as checkpointer:
        checkpointer.save(state(1), step=1).result()
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

        with pytest.raises(StoreDenied, match="read-only"):
            checkpointer.save(state(1), step=2).result()
        with pytest.raises(StoreDenied, match="read-only"):
            checkpointer.store.delete("step-00000001")

        assert checkpointer.load()["x"][0] == 1.0


FORBIDDEN_SCRIPT = """
import os, sys
import numpy
from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import StoreDenied
checkpointer = Checkpointer(sys.argv[1])
os.setuid(65534)
try:
    checkpointer.save({"x": numpy.zeros(10)}, step=1).result()
except StoreDenied as error:
    print(error)
"""


def test_a_forbidden_directory_is_named() -> None:
    needs_root()
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)

        done = subprocess.run([sys.executable, "-c", FORBIDDEN_SCRIPT, directory], capture_output=True, text=True)

        assert f"cannot write to {directory}/.partial: permission denied; check the owner" in done.stdout, done.stderr
        assert used_files(Path(directory)) == []


def test_a_process_without_descriptors_gets_a_clear_error_and_recovers(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(state(1), step=1).result()
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(highest + 1, limit[1]), limit[1]))
        held = []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            pass
        try:
            with pytest.raises(StoreUnreachable, match="too many files open; raise `ulimit -n`"):
                checkpointer.save(state(1), step=2).result()
            with pytest.raises(StoreUnreachable, match="too many files open"):
                checkpointer.load()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            for descriptor in held:
                os.close(descriptor)
        checkpointer.save(state(1), step=2).result()

    assert used_files(tmp_path) == ["step-00000001.tar", "step-00000002.tar"]


class Broken(FileStore):
    """A disk that fails one system call of the commit."""

    def begin(self, name: str, size: int) -> Sink:
        sink = super().begin(name, size)
        os.close(sink._descriptor)  # type: ignore[attr-defined]  # fsync will meet EBADF
        sink._descriptor = os.open("/dev/null", os.O_WRONLY)  # type: ignore[attr-defined]
        return sink


def test_a_disk_that_does_not_write_makes_nothing_visible(tmp_path: Path) -> None:
    with Checkpointer(Broken(tmp_path)) as checkpointer, pytest.raises(StoreError):
        checkpointer.save(state(1), step=1).result()

    assert used_files(tmp_path) == []
