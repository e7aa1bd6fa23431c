from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints import checkpointer as checkpointer_module
from chockstone.checkpoints.errors import (
    CheckpointError,
    InvalidName,
    SaveAbandoned,
    SaveFailed,
    UnstorableValue,
)
from chockstone.checkpoints.saving import copy_progress, tensor_copies
from chockstone.checkpoints.saving.copy_progress import CopyProgress
from chockstone.checkpoints.saving.snapshot import Snapshot, SnapshotCopy, Snapshotter
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import Sink
from support.archives import assert_same
from support.checkpoints.damage import partials
from support.tensors import full, ones, zeros


class GatedStore(FileStore):
    """A real store whose commits wait for a gate; what it measures is order and concurrency."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate = threading.Event()
        self.begun: list[str] = []

    def begin(self, name: str, size: int) -> Sink:
        self.begun.append(name)
        sink = super().begin(name, size)
        commit = sink.commit

        def commit_after_gate(*, overwrite: bool) -> None:
            assert self.gate.wait(60)
            commit(overwrite=overwrite)

        sink.commit = commit_after_gate  # type: ignore[method-assign]
        return sink


class WatchedStore(FileStore):
    """Tells when the first bytes are written."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.first_bytes = threading.Event()

    def begin(self, name: str, size: int) -> Sink:
        sink = super().begin(name, size)
        write_at = sink.write_at

        def write(offset: int, data: memoryview) -> None:
            write_at(offset, data)
            self.first_bytes.set()

        sink.write_at = write  # type: ignore[method-assign]
        return sink


class FailingStore(FileStore):
    def begin(self, name: str, size: int) -> Sink:
        raise CheckpointError("the disk is on fire")


class CountedQueue(SimpleQueue[Any]):
    """Counts how often an item was asked for."""

    gets = 0

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.gets += 1
        return super().get(block, timeout)


def large(value: float) -> dict[str, Any]:
    """A state of 40 MB, whose writer follows the copy."""
    return {"w": full(10_000_000, value)}


def call_before_last_piece(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first copy of a large state call ``call`` in the thread of its caller."""
    moved = iter(range(100))
    move = tensor_copies.move

    def call_and_move(target: int, source: int, size: int) -> None:
        if next(moved) == 4:
            call()
        move(target, source, size)

    monkeypatch.setattr(tensor_copies, "move", call_and_move)
    monkeypatch.setattr(tensor_copies, "_count_helpers", lambda _: 0)


def copy_last_piece_after(event: threading.Event, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
    """Have the copy of a large state wait before its last piece, and raise there if it ``fails``."""

    def wait() -> None:
        assert event.wait(60)
        if fails:
            raise OSError("the device is gone")

    call_before_last_piece(wait, monkeypatch)


def interrupt_copy(number: signal.Signals, store: WatchedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send this process a signal before the last piece of a large state, when its first bytes are written."""

    def interrupt() -> None:
        assert store.first_bytes.wait(60)
        signal.raise_signal(number)

    call_before_last_piece(interrupt, monkeypatch)


def call_at_writer_start(call: Callable[[Callable[[], None]], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first writer that is started call ``call`` instead, with the function that starts it."""
    start = threading.Thread.start
    is_first = True

    def call_instead(thread: threading.Thread) -> None:
        nonlocal is_first
        if thread.name == "chockstone-save" and is_first:
            is_first = False
            call(lambda: start(thread))
        else:
            start(thread)

    monkeypatch.setattr(threading.Thread, "start", call_instead)


@contextmanager
def handling_sigusr1(call: Callable[[], object]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda *_: call())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[GatedStore]:
    store = GatedStore(tmp_path / "store")
    yield store
    store.gate.set()


def test_the_state_may_change_as_soon_as_save_returns(gated: GatedStore) -> None:
    value = zeros(1000)
    with Checkpointer(gated) as checkpointer:
        handle = checkpointer.save({"x": value, "plain": (plain := [1])}, step=1)
        value[:] = 9.0
        plain.append(2)

        assert not handle.done()
        gated.gate.set()
        handle.result()
        loaded = checkpointer.load()

    assert loaded["x"].sum() == 0
    assert loaded["plain"] == [1]


def test_the_archive_is_written_while_the_state_is_still_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WatchedStore(tmp_path)
    copy_last_piece_after(store.first_bytes, monkeypatch)
    state = {"w": full(10_000_000, 3.0), "x": full(300, 2.0)}

    with Checkpointer(store) as checkpointer:
        saved = checkpointer.save(state, step=1).result()
        loaded = checkpointer.load()

    assert_same(loaded, state)
    assert 0 < saved.blocked_seconds <= saved.seconds


def test_a_copy_that_fails_while_the_archive_is_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WatchedStore(tmp_path)
    with Checkpointer(store) as checkpointer:
        with monkeypatch.context() as patch:
            copy_last_piece_after(store.first_bytes, patch, fails=True)
            with pytest.raises(OSError, match="the device is gone"):
                checkpointer.save({"w": full(10_000_000, 3.0)}, step=1)

        checkpointer.save({"w": full(10_000_000, 4.0)}, step=2).result()
        assert [found.name for found in checkpointer.checkpoints()] == ["step-00000002"]

    assert partials(tmp_path) == []


def test_a_save_that_is_refused_gives_its_memory_back_when_the_copy_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next save would copy into memory that this one still writes to."""
    checkpointer = Checkpointer(FailingStore(tmp_path))
    released: list[bool] = []
    has_ended = threading.Event()
    refused = threading.Event()
    release, end = checkpointer._buffers.release, CopyProgress.end
    wait = CopyProgress.wait_until_ended

    def note_release(snapshotter: Snapshotter) -> None:
        released.append(has_ended.is_set())
        release(snapshotter)

    def note_end(progress: CopyProgress) -> None:
        has_ended.set()
        end(progress)

    def note_refusal(progress: CopyProgress) -> None:
        refused.set()
        wait(progress)

    monkeypatch.setattr(checkpointer._buffers, "release", note_release)
    monkeypatch.setattr(CopyProgress, "end", note_end)
    monkeypatch.setattr(CopyProgress, "wait_until_ended", note_refusal)
    copy_last_piece_after(refused, monkeypatch)

    with pytest.raises(CheckpointError, match="on fire"):
        checkpointer.save({"w": full(10_000_000, 3.0)}, step=1).result()

    assert released == [True]


@pytest.mark.parametrize(("floats", "order"), [(10, ["copied", "started"]), (10_000_000, ["started", "copied"])])
def test_only_the_writer_of_a_large_state_is_started_before_the_copy(
    floats: int, order: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    run = SnapshotCopy.run

    def run_and_note(copy: SnapshotCopy, is_abandoned: Callable[[], bool]) -> Snapshot:
        snapshot = run(copy, is_abandoned)
        seen.append("copied")
        return snapshot

    def note_and_start(start: Callable[[], None]) -> None:
        seen.append("started")
        start()

    monkeypatch.setattr(SnapshotCopy, "run", run_and_note)
    call_at_writer_start(note_and_start, monkeypatch)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": zeros(floats)}, step=1)

    assert seen == order


@pytest.mark.parametrize("state", [{"x": 1}, large(1.0)], ids=["without tensors", "large"])
def test_an_archive_is_committed_after_its_copy_has_ended(
    state: dict[str, Any], gated: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all bytes are written before the caller has said so."""
    waits, is_committing = threading.Event(), threading.Event()
    committed_at_end: list[bool] = []
    end, wait_until_made = CopyProgress.end, CopyProgress.wait_until_made
    gate_wait = gated.gate.wait

    def wait_and_end(progress: CopyProgress) -> None:
        assert waits.wait(60)
        committed_at_end.append(is_committing.is_set())
        end(progress)

    def note_and_wait(progress: CopyProgress) -> None:
        waits.set()
        wait_until_made(progress)

    def note_commit(timeout: float) -> bool:
        is_committing.set()
        waits.set()
        return gate_wait(timeout)

    monkeypatch.setattr(checkpointer_module, "_FOLLOWED_BYTES", 0)
    monkeypatch.setattr(CopyProgress, "end", wait_and_end)
    monkeypatch.setattr(CopyProgress, "wait_until_made", note_and_wait)
    monkeypatch.setattr(gated.gate, "wait", note_commit)
    gated.gate.set()
    with Checkpointer(gated) as checkpointer:
        saved = checkpointer.save(state, step=1).result()

    assert committed_at_end == [False]
    assert 0 < saved.blocked_seconds <= saved.seconds


def test_ctrl_c_while_a_writer_follows_the_copy_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = WatchedStore(tmp_path)
    with Checkpointer(store) as checkpointer:
        with monkeypatch.context() as patch:
            interrupt_copy(signal.SIGINT, store, patch)
            with pytest.raises(KeyboardInterrupt):
                checkpointer.save(large(1.0), step=1)

        checkpointer.save(large(2.0), step=2).result(60)
        assert [found.name for found in checkpointer.checkpoints()] == ["step-00000002"]

    assert partials(tmp_path) == []


@pytest.mark.parametrize("is_started", [False, True])
def test_ctrl_c_while_the_writer_is_started_ends_the_save(
    is_started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(start: Callable[[], None]) -> None:
        if is_started:
            start()
        signal.raise_signal(signal.SIGINT)

    with Checkpointer(tmp_path) as checkpointer:
        with monkeypatch.context() as patch:
            call_at_writer_start(interrupt, patch)
            with pytest.raises(KeyboardInterrupt):
                checkpointer.save({"x": 1}, step=1)

        checkpointer.save({"x": 2}, step=2).result(60)
        names = [found.name for found in checkpointer.checkpoints()]

    assert names == ["step-00000002"] or (is_started and names == ["step-00000001", "step-00000002"])
    assert partials(tmp_path) == []


@pytest.mark.parametrize("floats", [10, 10_000_000])
def test_a_signal_handler_saves_while_it_interrupts_a_copy(
    floats: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WatchedStore(tmp_path)
    steps: list[int | None] = []

    def save() -> None:
        steps.append(checkpointer.save({"w": full(floats, 2.0)}, step=2).result(60).step)
        checkpointer.wait()

    with Checkpointer(store, buffers=2) as checkpointer, handling_sigusr1(save):
        interrupt_copy(signal.SIGUSR1, store, monkeypatch)
        steps.append(checkpointer.save(large(1.0), step=1).result(60).step)
        values = [checkpointer.load(name=found.name)["w"][-1].item() for found in checkpointer.checkpoints()]

    assert steps == [2, 1]
    assert sorted(values) == [1.0, 2.0]


def test_a_signal_handler_saves_before_the_writer_of_the_interrupted_save_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int | None] = []

    def save() -> None:
        steps.append(checkpointer.save({"x": 2}, step=2).result(60).step)

    def interrupt(start: Callable[[], None]) -> None:
        signal.raise_signal(signal.SIGUSR1)
        start()

    with Checkpointer(tmp_path, buffers=2) as checkpointer, handling_sigusr1(save):
        call_at_writer_start(interrupt, monkeypatch)
        steps.append(checkpointer.save({"x": 1}, step=1).result(60).step)

    assert steps == [2, 1]


def test_a_signal_handler_that_closes_abandons_the_save_that_it_interrupts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WatchedStore(tmp_path)
    checkpointer = Checkpointer(store, buffers=2)

    def save_and_close() -> None:
        checkpointer.save(large(2.0), step=2).result(60)
        checkpointer.close()

    interrupt_copy(signal.SIGUSR1, store, monkeypatch)
    with handling_sigusr1(save_and_close), pytest.raises(SaveAbandoned, match="nothing of it is visible"):
        checkpointer.save(large(1.0), step=1)

    checkpointer.wait()
    assert [entry.name for entry in store.entries()] == ["step-00000002"]
    assert partials(tmp_path) == []


def test_nothing_is_visible_before_the_commit(gated: GatedStore) -> None:
    with Checkpointer(gated) as checkpointer:
        handle = checkpointer.save({"x": zeros(10)}, step=1)

        assert list(gated.entries()) == []
        assert not handle.done()

        gated.gate.set()
        handle.result()
        assert [entry.name for entry in gated.entries()] == ["step-00000001"]
        assert partials(gated.root) == []


def test_a_second_save_waits_for_the_first_and_memory_stays_one_snapshot(gated: GatedStore) -> None:
    with Checkpointer(gated) as checkpointer:
        first = checkpointer.save({"x": zeros(10)}, step=1)
        second: list[Any] = []
        thread = threading.Thread(target=lambda: second.append(checkpointer.save({"x": ones(10)}, step=2)))
        thread.start()
        thread.join(0.2)

        assert thread.is_alive()
        assert gated.begun == ["step-00000001"]

        gated.gate.set()
        thread.join(60)
        assert second[0].result().step == 2
        assert first.result().step == 1


def test_two_buffers_let_a_second_save_return_at_once(gated: GatedStore) -> None:
    with Checkpointer(gated, buffers=2) as checkpointer:
        handles = [checkpointer.save({"x": full(10, float(step))}, step=step) for step in (1, 2)]
        gated.gate.set()

        assert [handle.result().step for handle in handles] == [1, 2]
        assert checkpointer.load()["x"][0] == 2.0


def test_saves_from_many_threads_all_arrive(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        threads = [
            threading.Thread(target=lambda step=step: checkpointer.save({"x": full(100, float(step))}, step=step))
            for step in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        checkpointer.wait()

        values = {c.name: checkpointer.load(name=c.name)["x"][0].item() for c in checkpointer.checkpoints()}

    assert values == {f"step-{step:08d}": float(step) for step in range(12)}


def test_leaving_the_block_raises_an_unseen_error(tmp_path: Path) -> None:
    with pytest.raises(SaveFailed), Checkpointer(FailingStore(tmp_path)) as checkpointer:
        checkpointer.save({"x": 1}, step=1)


def test_an_unstorable_value_is_refused_at_once_and_the_next_save_works(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(UnstorableValue, match=r"optimizer\.param_groups\[0\]\.foo: <builtins\.object>"):
            checkpointer.save({"optimizer": {"param_groups": [{"foo": object()}]}}, step=1)

        checkpointer.save({"x": 1}, step=1).result()

    assert partials(tmp_path) == []


@pytest.mark.parametrize("name", ["../up", "/abs", "a//b", "", ".hidden", "a/../b", "ü", "a b", "x" * 300, "a\x00b"])
def test_names_that_could_leave_the_store_are_refused(name: str, tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(InvalidName):
        checkpointer.save({"x": 1}, name=name)


def test_an_abandoned_save_leaves_nothing(gated: GatedStore) -> None:
    with Checkpointer(gated) as checkpointer:
        handle = checkpointer.save({"x": zeros(8_000_000)}, step=1)
        handle.abandon()
        gated.gate.set()

        error = handle.exception()
        names = [entry.name for entry in gated.entries()]

    assert (isinstance(error, SaveAbandoned) and names == []) or (error is None and names == ["step-00000001"])
    assert partials(gated.root) == []


def test_a_closed_checkpointer_takes_no_saves(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.close()

    with pytest.raises(CheckpointError, match="closed"):
        checkpointer.save({"x": 1}, step=1)


async def test_awaiting_never_blocks_the_loop(gated: GatedStore) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    with Checkpointer(gated) as checkpointer:
        ticking = asyncio.create_task(tick())
        handle = await checkpointer.save_async({"x": zeros(4_000_000)}, step=1)
        second = asyncio.create_task(checkpointer.save_async({"x": zeros(10)}, step=2))
        before = ticks
        while ticks < before + 100:
            await asyncio.sleep(0)
        assert not second.done()
        gated.gate.set()
        saved = await handle
        second_saved = await (await second)
        ticking.cancel()

    assert (saved.step, second_saved.step) == (1, 2)


async def test_the_copy_of_an_async_save_runs_in_another_thread(tmp_path: Path) -> None:
    seen: list[threading.Thread] = []

    class Spy:
        def state_dict(self) -> dict[str, int]:
            seen.append(threading.current_thread())
            return {"x": 1}

    with Checkpointer(tmp_path) as checkpointer:
        await (await checkpointer.save_async({"spy": Spy()}, step=1))

    assert seen and threading.main_thread() not in seen


async def test_cancelling_a_queued_save_frees_its_turn(gated: GatedStore) -> None:
    with Checkpointer(gated) as checkpointer:
        first = await checkpointer.save_async({"x": 1}, step=1)
        queued = asyncio.create_task(checkpointer.save_async({"x": 2}, step=2))
        await asyncio.sleep(0.01)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        gated.gate.set()
        await first
        third = await (await checkpointer.save_async({"x": 3}, step=3))

    assert third.step == 3
    assert [entry.name for entry in gated.entries()] == ["step-00000001", "step-00000003"]


async def test_cancelling_during_the_copy_never_commits(tmp_path: Path) -> None:
    copying, go_on = threading.Event(), threading.Event()

    class Slow:
        def state_dict(self) -> dict[str, Any]:
            copying.set()
            assert go_on.wait(60)
            return {"x": zeros(10)}

    with Checkpointer(tmp_path) as checkpointer:
        task = asyncio.create_task(checkpointer.save_async({"slow": Slow()}, step=1))
        await asyncio.to_thread(copying.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await asyncio.to_thread(checkpointer.wait)

        assert list(checkpointer.store.entries()) == []
    assert partials(tmp_path) == []


async def test_cancelling_a_waiter_does_not_cancel_the_save(gated: GatedStore) -> None:
    with Checkpointer(gated) as checkpointer:
        handle = checkpointer.save({"x": 1}, step=1)

        async def wait() -> None:
            await handle

        waiter = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        waiter.cancel()
        gated.gate.set()

        assert (await handle).step == 1


async def test_restore_async_runs_off_the_loop(tmp_path: Path) -> None:
    target = {"x": zeros(10)}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": ones(10)}, step=1).result()

        receipt = await checkpointer.restore_async(target)

    assert receipt.step == 1
    assert target["x"].sum() == 10


async def test_closing_does_not_wait_for_a_task_that_only_the_loop_can_run(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        task = asyncio.create_task(checkpointer.save_async({"x": 1}, step=1))
        await asyncio.sleep(0)

    with pytest.raises(CheckpointError, match="closed"):
        await task


async def test_leaving_an_async_block_waits_for_its_saves(tmp_path: Path) -> None:
    async with Checkpointer(tmp_path) as checkpointer:
        handle = await checkpointer.save_async({"x": zeros(1_000_000)}, step=1)

    assert handle.done()


EXIT_SCRIPT = """
import sys
import numpy as np
from chockstone.checkpoints import Checkpointer
checkpointer = Checkpointer(sys.argv[1])
checkpointer.save({"x": np.ones(4_000_000, np.float32)}, step=1)
print("saving", flush=True)
"""


@pytest.mark.parametrize(
    "ending", ["", "raise SystemExit(3)", "raise RuntimeError('crash')", "raise KeyboardInterrupt"]
)
def test_the_end_of_the_program_waits_for_running_saves(ending: str, tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as before:
        before.save({"x": zeros(1)}, step=0).result()

    subprocess.run([sys.executable, "-c", EXIT_SCRIPT + ending, str(tmp_path)], capture_output=True)

    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.load()["x"].sum() == 4_000_000
    assert partials(tmp_path) == []


SLOW_EXIT_SCRIPT = """
import sys, time
import numpy as np
from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.stores.file_sink import FileSink
write_at = FileSink.write_at
def slow(self, offset, data):
    time.sleep(0.2)  # an interrupt leaves no lock behind in it
    write_at(self, offset, data)
FileSink.write_at = slow
checkpointer = Checkpointer(sys.argv[1])
checkpointer.save({"x": np.ones(100_000_000, np.float32)}, step=1)
print("saving", flush=True)
time.sleep(60)
"""


def test_a_second_ctrl_c_abandons_the_save_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW_EXIT_SCRIPT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        is_ending = any("KeyboardInterrupt" in line for line in process.stderr)  # and the save goes on
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)

    assert is_ending
    names = [entry.name for entry in FileStore(tmp_path).entries()]
    assert names in ([], ["step-00000001"])
    assert partials(tmp_path) == []


def test_a_writer_that_is_faster_than_the_copy_writes_only_what_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {f"small-{n}": full(300_000, n + 1.0) for n in range(13)} | {"w": full(6_000_000, 20.0)}
    advance = CopyProgress.advance
    reported = 0

    def wait_until_it_is_written(progress: CopyProgress, start: int, end: int) -> None:
        nonlocal reported
        advance(progress, start, end)
        reported += 1
        while (
            cast("CountedQueue", progress._events).gets <= reported
        ):  # the writer asks for more when it has written all that it can
            time.sleep(0.0005)

    monkeypatch.setattr(copy_progress, "SimpleQueue", CountedQueue)
    monkeypatch.setattr(CopyProgress, "advance", wait_until_it_is_written)
    monkeypatch.setattr(tensor_copies, "_count_helpers", lambda _: 0)

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(state, step=1).result()
        restored = {name: zeros(len(tensor)) for name, tensor in state.items()}
        checkpointer.restore(restored)

    assert_same(restored, state)
