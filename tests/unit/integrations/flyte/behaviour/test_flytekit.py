"""F44: what flytekit documents and tests of its checkpoint holds for its own class and for ours alike.

The source distribution of flytekit has no tests, so these are written afresh from its behaviour; that they hold for
its own class is what shows that they say what flytekit does.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import flytekit
import pytest
from flytekit.core.checkpointer import SyncCheckpoint
from flytekit.core.local_cache import LocalTaskCache
from flytekit.exceptions.user import FlyteDataNotFoundException

from chockstone.integrations.flyte import FlyteCheckpoint, resumable


@pytest.fixture(params=[SyncCheckpoint, FlyteCheckpoint], ids=["flytekit", "ours"])
def kind(request: pytest.FixtureRequest) -> Iterator[type[SyncCheckpoint]]:
    """A class whose objects are cleaned up here: flytekit's complain if the collector comes first."""
    made: list[SyncCheckpoint] = []

    class Kept(request.param):  # type: ignore[misc]
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    yield Kept
    for each in made:
        each._td.cleanup()


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("src", "dest"):
        (tmp_path / name).mkdir()
    return tmp_path / "src", tmp_path / "dest"


def test_F44_a_first_attempt_restores_nothing_and_writes(kind: type[SyncCheckpoint], tmpdir: object) -> None:
    checkpoint = kind(checkpoint_dest=tmpdir)  # not a string

    assert not checkpoint.prev_exists()
    assert checkpoint.read() is None
    assert checkpoint.restore() is None
    checkpoint.write(b"bytes")

    assert [path.name for path in Path(str(tmpdir)).iterdir()] == [kind.TMP_DST_PATH]


def test_F44_a_reader_is_saved_under_the_fixed_name(kind: type[SyncCheckpoint], folders: tuple[Path, Path]) -> None:
    src, dest = folders
    (src / "test").write_bytes(b"blah")

    with (src / "test").open("rb") as file:
        kind(checkpoint_dest=str(dest)).save(file)

    assert {path.name: path.read_bytes() for path in dest.iterdir()} == {"_dst_cp": b"blah"}


def test_F44_a_file_is_saved_under_its_name(kind: type[SyncCheckpoint], folders: tuple[Path, Path]) -> None:
    src, dest = folders
    (src / "model.tar.gz").write_bytes(b"blah")

    kind(checkpoint_dest=str(dest)).save(src / "model.tar.gz")

    assert {path.name: path.read_bytes() for path in dest.iterdir()} == {"model.tar.gz": b"blah"}


def test_F44_a_folder_is_saved_as_a_tree(kind: type[SyncCheckpoint], folders: tuple[Path, Path]) -> None:
    src, dest = folders
    (src / "deep").mkdir()
    (src / "one").write_bytes(b"1")
    (src / "deep" / "two").write_bytes(b"2")

    kind(checkpoint_dest=str(dest)).save(src)

    assert (dest / "one").read_bytes() + (dest / "deep" / "two").read_bytes() == b"12"


def test_F44_saves_of_one_attempt_add_up(kind: type[SyncCheckpoint], folders: tuple[Path, Path]) -> None:
    src, dest = folders
    checkpoint = kind(checkpoint_dest=str(dest))
    for name in ("one", "two", "one"):
        (src / name).write_bytes(name.encode())
        checkpoint.save(src / name)

    assert {path.name for path in dest.iterdir()} == {"one", "two"}


@pytest.mark.parametrize("thing", [SyncCheckpoint, 7, None], ids=["class", "number", "none"])
def test_F44_nothing_else_can_be_saved(kind: type[SyncCheckpoint], tmp_path: Path, thing: object) -> None:
    with pytest.raises(ValueError):
        kind(checkpoint_dest=str(tmp_path / "dest")).save(thing)


def test_F44_only_bytes_can_be_written(kind: type[SyncCheckpoint], tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        kind(checkpoint_dest=str(tmp_path / "dest")).write("text")


def test_F44_it_restores_to_a_directory_once(kind: type[SyncCheckpoint], folders: tuple[Path, Path]) -> None:
    src, dest = folders
    (src / "prev").write_bytes(b"prev-bytes")
    checkpoint = kind(checkpoint_dest=str(dest), checkpoint_src=str(src))
    wanted = src.parent / "wanted"

    with pytest.raises(ValueError):
        checkpoint.restore(wanted)
    wanted.mkdir()

    assert checkpoint.restore(wanted) == wanted
    assert checkpoint.restore("elsewhere") == wanted
    assert (wanted / "prev").read_bytes() == b"prev-bytes"


def test_F44_it_restores_to_a_directory_of_its_own(kind: type[SyncCheckpoint], folders: tuple[Path, Path]) -> None:
    src, dest = folders
    (src / "prev").write_bytes(b"prev-bytes")
    checkpoint = kind(checkpoint_dest=str(dest), checkpoint_src=str(src))

    assert checkpoint.prev_exists()
    assert checkpoint.read() == b"prev-bytes"
    assert isinstance(checkpoint._prev_download_path, Path)
    assert checkpoint.restore() == checkpoint._prev_download_path
    assert checkpoint._prev_download_path.name == kind.SRC_LOCAL_FOLDER


def test_F44_an_empty_directory_reads_as_none(kind: type[SyncCheckpoint], folders: tuple[Path, Path]) -> None:
    src, dest = folders

    assert kind(checkpoint_dest=str(dest), checkpoint_src=str(src)).read() is None


def test_F44_of_several_files_none_is_read(kind: type[SyncCheckpoint], folders: tuple[Path, Path]) -> None:
    src, dest = folders
    (src / "prev").write_bytes(b"1")
    (src / "prev2").write_bytes(b"2")

    with pytest.raises(ValueError, match="Expected exactly one checkpoint - found 2"):
        kind(checkpoint_dest=str(dest), checkpoint_src=str(src)).read()


def test_F44_a_previous_one_that_is_not_there_raises_every_time(kind: type[SyncCheckpoint], tmp_path: Path) -> None:
    checkpoint = kind(checkpoint_dest=str(tmp_path / "dest"), checkpoint_src=str(tmp_path / "src"))

    for ask in (checkpoint.restore, checkpoint.read, checkpoint.restore):
        with pytest.raises(FlyteDataNotFoundException):
            ask()


@pytest.mark.parametrize("src", [None, ""])
def test_F44_no_previous_path_is_none(kind: type[SyncCheckpoint], tmp_path: Path, src: str | None) -> None:
    checkpoint = kind(checkpoint_dest=str(tmp_path / "dest"), checkpoint_src=src)

    assert checkpoint._checkpoint_src is None
    assert checkpoint.restore(tmp_path / "not there") is None


@flytekit.task
def native_task(n: int) -> int:
    flytekit.current_context().checkpoint.write(bytes(n + 1))
    return n + 1


@flytekit.task
@resumable
def our_task(n: int) -> int:
    checkpoint = flytekit.current_context().checkpoint
    assert isinstance(checkpoint, FlyteCheckpoint)
    checkpoint.write(bytes(n + 1))
    return n + 1


@flytekit.task(cache=True, cache_version="v0")
@resumable
def our_cached_task(n: int) -> int:
    flytekit.current_context().checkpoint.save(io.BytesIO(bytes(n + 1)))
    return n + 1


@pytest.mark.parametrize("task", [native_task, our_task, our_cached_task], ids=["flytekit", "ours", "ours cached"])
def test_F44_a_task_that_runs_locally_has_a_checkpoint(task: object) -> None:
    LocalTaskCache.initialize()
    LocalTaskCache.clear()

    assert callable(task)
    assert task(n=5) == 6
    assert task(n=5) == 6
