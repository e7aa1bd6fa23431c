from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from chockstone.checkpoints.errors import LocalResourceError, StoreDenied, StoreError, StoreFull, StoreUnreachable
from chockstone.checkpoints.stores.posix import ensure_directory, explain, local_errors, move_if_absent, put_file


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EACCES, StoreDenied),
        (errno.EROFS, StoreDenied),
        (errno.EMFILE, StoreUnreachable),
        (errno.EIO, StoreUnreachable),
    ],
)
def test_a_failed_system_call_is_the_error_that_says_what_to_do(number: int, kind: type[StoreError]) -> None:
    error = explain(OSError(number, os.strerror(number)), "cannot write here")

    assert type(error) is kind
    assert str(error).startswith("cannot write here: ")


def test_a_full_disk_of_this_machine_is_not_the_fault_of_the_store() -> None:
    with pytest.raises(LocalResourceError, match="TMPDIR"), local_errors("cannot extract"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_is_moved_only_to_a_name_that_is_free(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("new")

    move_if_absent(source, target)
    source.write_text("newer")

    with pytest.raises(FileExistsError):
        move_if_absent(source, target)
    assert (target.read_text(), source.read_text()) == ("new", "newer")


def test_a_file_is_put_whole_and_replaced_only_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "made" / "note"
    ensure_directory(path.parent)

    put_file(path, b"one", may_replace=False)
    with pytest.raises(FileExistsError):
        put_file(path, b"two", may_replace=False)
    put_file(path, b"three", may_replace=True)

    assert path.read_bytes() == b"three"
    assert [found.name for found in path.parent.iterdir()] == ["note"]
