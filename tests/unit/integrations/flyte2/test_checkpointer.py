"""Ours does what flyte says of its own: what its sixteen tests ask for (F44), and what they leave open.

Flyte's wheel has no tests: these are written afresh, from what it documents and does.
"""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import tarfile
from pathlib import Path

import flyte
import pytest
from flyte import latest_checkpoint
from flyte._checkpoint import CHECKPOINT_CACHE_KEY
from flyte._checkpoint import Checkpoint as NativeCheckpoint
from flyte.models import ActionID, CheckpointPaths, RawDataPath, TaskContext
from flyte.report import Report
from flyte.storage import S3

from chockstone.checkpoints.errors import ResumeError, Superseded
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.integrations.flyte2 import Flyte2Checkpoint
from support.integrations.flyte2_attempts import IDENTITY, Storage, loaded
from support.loop_gate import LoopGate


def native_tar(path: Path, **texts: str) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in texts.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))


def context(paths: CheckpointPaths | None, *, run: str = "r1") -> TaskContext:
    return TaskContext(
        action=ActionID(name="a0", run_name=run, project="p", domain="d"),
        version="v1",
        raw_data_path=RawDataPath(path="/nowhere"),
        output_path="/nowhere",
        run_base_dir="/nowhere",
        report=Report(name="t"),
        checkpoint_paths=paths,
    )


# What flyte's own tests ask for.


def test_f44_prev_exists_says_whether_the_platform_named_a_place_and_asks_no_store() -> None:
    assert not Flyte2Checkpoint("s3://bucket/out").prev_exists()
    assert not Flyte2Checkpoint("s3://bucket/out", '""').prev_exists()
    assert Flyte2Checkpoint("s3://bucket/out", "s3://bucket/prev").prev_exists()


def test_f44_it_is_a_flyte_checkpoint_with_its_properties(tmp_path: Path) -> None:
    checkpoint = Flyte2Checkpoint(tmp_path / "out", " prev ")

    assert isinstance(checkpoint, NativeCheckpoint)
    assert checkpoint.remote_destination == str(tmp_path / "out")
    assert checkpoint.remote_source == "prev"
    assert checkpoint.path.is_dir()


def test_f44_the_newest_file_of_a_restored_tree_is_the_one_that_was_written_last(
    storage: Storage, tmp_path: Path
) -> None:
    for name, moment in {"a": 2_000, "b": 9_000, "c": 5_000}.items():
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "last.ckpt").write_text(name)
        os.utime(tmp_path / "run" / name / "last.ckpt", (moment, moment))
    storage.attempt(1).save_sync(tmp_path / "run")

    resumed = storage.attempt(2)
    tree = resumed.load_sync()

    assert tree is not None
    assert latest_checkpoint(tree) == tree / "b" / "last.ckpt"


@pytest.mark.parametrize("as_uri", [True, False])
def test_f44_a_directory_that_flyte_saved_comes_back_and_the_next_one_too(tmp_path: Path, as_uri: bool) -> None:
    def place(name: str) -> str:
        return (tmp_path / name).as_uri() if as_uri else str(tmp_path / name)

    native_tar(tmp_path / "prev", **{"state.json": json.dumps({"step": 3})})

    first = Flyte2Checkpoint(place("out"), place("prev"))
    assert first.load_sync() == first.path
    assert json.loads((first.path / "state.json").read_text()) == {"step": 3}
    (first.path / "state.json").write_text(json.dumps({"step": 4}))
    first.save_sync(first.path)

    second = Flyte2Checkpoint(place("out2"), place("out"))
    assert second.load_sync() == second.path
    assert json.loads((second.path / "state.json").read_text()) == {"step": 4}


def test_f44_an_object_that_is_no_tar_comes_back_as_the_payload(tmp_path: Path) -> None:
    (tmp_path / "prev").write_bytes(b"hello-checkpoint")
    first = Flyte2Checkpoint((tmp_path / "out").as_uri(), (tmp_path / "prev").as_uri())

    found = first.load_sync()

    assert found == first.path / "payload"
    assert found.read_bytes() == b"hello-checkpoint"
    first.save_sync(b"next")
    assert loaded(Flyte2Checkpoint(tmp_path / "other", (tmp_path / "out").as_uri())) == b"next"


@pytest.mark.parametrize("is_async", [True, False])
async def test_f44_nothing_there_is_no_checkpoint(storage: Storage, is_async: bool) -> None:
    checkpoint = storage.attempt(2)

    found = await checkpoint.load() if is_async else checkpoint.load_sync()

    assert found is None
    assert checkpoint.report is not None
    assert checkpoint.report.outcome == "fresh"


async def test_f44_loading_and_saving_on_the_loop_of_a_task(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("7")
    await storage.attempt(1).save(tmp_path / "state.json")
    resumed = storage.attempt(2)

    found = await resumed.load()

    assert found == resumed.path / "payload"
    assert found.read_text() == "7"
    await resumed.save(found)


def test_f44_an_empty_directory_is_a_checkpoint(storage: Storage) -> None:
    first = storage.attempt(1)
    first.save_sync(first.path)

    second = storage.attempt(2)

    assert second.load_sync() == second.path
    assert list(second.path.iterdir()) == []


def test_f44_a_context_keeps_the_one_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyte._checkpoint.Checkpoint", Flyte2Checkpoint)
    task = context(CheckpointPaths(checkpoint_path=str(tmp_path / "out"), prev_checkpoint_path=str(tmp_path / "prev")))

    assert task.checkpoint is task.checkpoint
    assert type(task.data[CHECKPOINT_CACHE_KEY]) is Flyte2Checkpoint


@pytest.mark.parametrize("dest", [None, "  "])
def test_f44_a_context_without_a_place_has_none(dest: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyte._checkpoint.Checkpoint", Flyte2Checkpoint)

    assert context(CheckpointPaths(checkpoint_path=dest, prev_checkpoint_path=None)).checkpoint is None
    assert context(None).checkpoint is None


# What they leave open.


def test_f44_a_saved_file_that_does_not_exist_is_said_as_flyte_says_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Checkpoint source path does not exist"):
        Flyte2Checkpoint(tmp_path / "out").save_sync(tmp_path / "missing")


def test_the_last_save_of_an_attempt_is_what_the_next_one_gets(storage: Storage) -> None:
    first = storage.attempt(1)
    for content in (b"1", b"22", b"333"):
        first.save_sync(content)

    assert loaded(storage.attempt(2)) == b"333"


def test_loading_twice_gives_the_same_and_downloads_once(storage: Storage) -> None:
    storage.attempt(1).save_sync(b"state")
    resumed = storage.attempt(2)
    found = resumed.load_sync()
    assert found is not None
    found.write_bytes(b"changed by the task")

    assert resumed.load_sync() == found
    assert found.read_bytes() == b"changed by the task"
    assert resumed.prev_exists()


async def test_loading_from_several_tasks_at_once_gives_one_answer(storage: Storage) -> None:
    storage.attempt(1).save_sync(b"state")
    resumed = storage.attempt(2)

    found = await asyncio.gather(*(resumed.load() for _ in range(8)))

    assert set(found) == {resumed.path / "payload"}


def test_a_restored_tree_replaces_what_was_in_the_workspace(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "a").write_text("saved")
    storage.attempt(1).save_sync(tmp_path / "tree")
    resumed = storage.attempt(2)
    (resumed.path / "sub").mkdir()
    (resumed.path / "sub" / "left over").write_text("x")

    resumed.load_sync()

    assert [path.name for path in resumed.path.rglob("*")] == ["sub", "a"]


def test_a_restart_where_it_stood_goes_on_from_its_own_place(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.attempt(1).save_sync(b"old")
    storage.attempt(2).save_sync(b"own")
    monkeypatch.setenv("JOBSET_RESTART_ATTEMPT", "1")
    monkeypatch.setattr("flyte._checkpoint.Checkpoint", Flyte2Checkpoint)
    paths = CheckpointPaths(checkpoint_path=storage.dest(2), prev_checkpoint_path=storage.dest(1))
    restarted = context(paths).checkpoint
    assert isinstance(restarted, Flyte2Checkpoint)
    restarted._identity = dict(IDENTITY)  # outside of a task the class cannot tell

    assert restarted.prev_exists()
    assert loaded(restarted) == b"own"


def test_an_older_process_of_the_attempt_cannot_save_once_it_was_restarted(storage: Storage) -> None:
    zombie = storage.attempt(1)
    zombie.save_sync(b"1")
    restarted = storage.attempt(1)
    assert loaded(restarted) == b"1"

    with pytest.raises(Superseded):
        zombie.save_sync(b"too late")

    restarted.save_sync(b"2")
    assert loaded(storage.attempt(2)) == b"2"


def test_ranks_read_beside_rank_0_and_do_not_save(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.attempt(1).save_sync(b"state")
    leader = storage.attempt(2)
    assert loaded(leader) == b"state"
    monkeypatch.setenv("RANK", "3")
    other = storage.attempt(2)

    assert loaded(other) == b"state"
    with pytest.raises(ResumeError, match="rank 3 cannot save"):
        other.save_sync(b"x")
    leader.save_sync(b"next")  # nobody has taken its place


def test_what_another_run_left_at_the_same_place_is_not_taken(storage: Storage) -> None:
    storage.attempt(1, identity={**IDENTITY, "run": "other"}).save_sync(b"theirs")

    assert loaded(storage.attempt(2)) is None


def test_the_first_attempt_of_a_recovered_run_begins_where_the_platform_says(storage: Storage) -> None:
    storage.attempt(1, identity={**IDENTITY, "run": "before"}).save_sync(b"recovered")
    first = Flyte2Checkpoint(
        f"{storage.base}/r2/a0/1/_flytecheckpoints", storage.dest(1), identity={**IDENTITY, "run": "r2"}
    )

    assert loaded(first) == b"recovered"


@pytest.mark.parametrize("is_list", [True, False])
def test_places_of_other_runs_are_tried_last(storage: Storage, is_list: bool) -> None:
    storage.attempt(1, identity={**IDENTITY, "run": "other"}).save_sync(b"warm start")
    named = [storage.dest(1)] if is_list else storage.dest(1)
    fresh = Flyte2Checkpoint(f"{storage.base}/r2/a0/1/_flytecheckpoints", identity={"run": "r2"}, sources=named)

    assert loaded(fresh) == b"warm start"
    assert not (Path(storage.base) / "r2" / "a0" / "1" / "_flytecheckpoints").exists()


async def test_storage_is_the_one_that_flyte_was_told_of(s3: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLYTE_AWS_ENDPOINT", "FLYTE_AWS_ACCESS_KEY_ID", "FLYTE_AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    told = S3(endpoint=s3.server, access_key_id="told", secret_access_key="to flyte", region="us-east-1")
    resumed = s3.attempt(2)
    await flyte.init.aio(storage=told)
    try:
        await s3.attempt(1).save(b"state")
        found = await resumed.load()
    finally:
        await flyte.init.aio()

    assert found is not None
    assert found.read_bytes() == b"state"


@pytest.mark.parametrize("call", ["load", "save"])
async def test_the_loop_goes_on_while_it_loads_and_saves(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = LoopGate()
    monkeypatch.setattr(Chain, "claim", gate.before(Chain.claim))
    checkpoint = Flyte2Checkpoint(tmp_path / "out")

    async with gate.watch():
        await (checkpoint.load() if call == "load" else checkpoint.save(b"x"))


def test_making_one_asks_nothing_and_dropping_a_half_made_one_is_harmless(tmp_path: Path) -> None:
    Flyte2Checkpoint("s3://no-such-bucket/x", "s3://no-such-bucket/y")
    with pytest.raises(TypeError):
        Flyte2Checkpoint(None)  # type: ignore[arg-type]
    gc.collect()

    assert flyte.Checkpoint is NativeCheckpoint
    assert not list(tmp_path.iterdir())
