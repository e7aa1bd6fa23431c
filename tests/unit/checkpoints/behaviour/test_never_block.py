"""Nothing that the library does for a coroutine runs on its event loop; and what becomes of a save when things end.

Each path is checked as it is, and once more made inline, where the same check must fail.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chockstone.checkpoints import Archive, Checkpointer, SaveHandle
from chockstone.checkpoints import checkpointer as checkpointer_module
from chockstone.checkpoints.errors import SaveAbandoned
from chockstone.checkpoints.saving.buffers import Buffers
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import Sink
from support.loop_gate import HeldTheLoop, LoopGate

Patch = pytest.MonkeyPatch
GUARD_SECONDS = 60.0


class SlowStore(FileStore):
    """Whoever writes an archive waits at the gate first."""

    def __init__(self, root: Path, gate: LoopGate) -> None:
        super().__init__(root)
        self._gate = gate

    def begin(self, name: str, size: int) -> Sink:
        self._gate.wait()
        return super().begin(name, size)


def state(value: float = 1.0) -> dict[str, Any]:
    return {"x": np.full(1000, value, dtype=np.float32)}


def saved(home: Path) -> Checkpointer:
    checkpointer = Checkpointer(home)
    checkpointer.save(state(), step=1, files={"adapter_config.json": b"{}"}).result()
    return checkpointer


async def copy(home: Path, gate: LoopGate, patch: Patch) -> None:
    class Slow:
        def state_dict(self) -> dict[str, Any]:
            gate.wait()
            return state()

    async with Checkpointer(home) as checkpointer:
        async with gate.watch():
            await checkpointer.save_async({"slow": Slow()}, step=1)


async def wait_for_a_buffer(home: Path, gate: LoopGate, patch: Patch) -> None:
    checkpointer = Checkpointer(SlowStore(home, gate))
    await checkpointer.save_async(state(), step=1)
    async with gate.watch():
        await checkpointer.save_async(state(), step=2)
    await asyncio.to_thread(checkpointer.close)


async def wait_for_a_save(home: Path, gate: LoopGate, patch: Patch) -> None:
    checkpointer = Checkpointer(SlowStore(home, gate))
    handle = await checkpointer.save_async(state(), step=1)
    async with gate.watch():
        await handle


async def final_save(home: Path, gate: LoopGate, patch: Patch) -> None:
    checkpointer = Checkpointer(SlowStore(home, gate))
    await checkpointer.save_async(state(), step=1)
    async with gate.watch():
        await checkpointer.__aexit__(None, None, None)
    assert [entry.name for entry in checkpointer.store.entries()] == ["step-00000001"]


async def restore(home: Path, gate: LoopGate, patch: Patch) -> None:
    checkpointer, target = saved(home), state(0.0)
    patch.setattr(Archive, "check_block", gate.before(Archive.check_block))
    async with gate.watch():
        await checkpointer.restore_async(target)
    assert target["x"].sum() == 1000


async def load(home: Path, gate: LoopGate, patch: Patch) -> None:
    checkpointer = saved(home)
    patch.setattr(Archive, "check_block", gate.before(Archive.check_block))
    async with gate.watch():
        loaded = await checkpointer.load_async()
    assert loaded["x"].sum() == 1000


async def digest(home: Path, gate: LoopGate, patch: Patch) -> None:
    checkpointer = saved(home)
    patch.setattr(Archive, "check_block", gate.before(Archive.check_block))
    async with gate.watch():
        assert await checkpointer.verify_async("step-00000001") > 0


async def export(home: Path, gate: LoopGate, patch: Patch) -> None:
    checkpointer = saved(home / "store")
    patch.setattr(Archive, "read_range", gate.before(Archive.read_range))
    async with gate.watch():
        await checkpointer.export_async("step-00000001", home / "adapter", members=["*.json"])
    assert (home / "adapter" / "adapter_config.json").read_bytes() == b"{}"


def inline_threads(patch: Patch) -> None:
    async def in_thread(work: Callable[[], Any]) -> Any:
        return work()

    patch.setattr(checkpointer_module, "_in_thread", in_thread)


def inline_tickets(patch: Patch) -> None:
    ticket = Buffers.ticket

    def granted(buffers: Buffers) -> Any:
        taken = ticket(buffers)
        taken.exception()
        return taken

    patch.setattr(Buffers, "ticket", granted)


def inline_handles(patch: Patch) -> None:
    async def wait(handle: SaveHandle) -> Any:
        return handle.result()

    patch.setattr(SaveHandle, "__await__", lambda handle: wait(handle).__await__())


Check = Callable[[Path, LoopGate, Patch], Awaitable[None]]
PATHS: dict[Check, Callable[[Patch], None]] = {
    copy: inline_threads,
    wait_for_a_buffer: inline_tickets,
    wait_for_a_save: inline_handles,
    final_save: inline_threads,
    restore: inline_threads,
    load: inline_threads,
    digest: inline_threads,
    export: inline_threads,
}


@pytest.mark.parametrize("check", PATHS, ids=lambda check: check.__name__)
async def test_the_loop_goes_on_during(check: Check, tmp_path: Path, monkeypatch: Patch) -> None:
    await check(tmp_path, LoopGate(), monkeypatch)


@pytest.mark.parametrize("check", PATHS, ids=lambda check: check.__name__)
async def test_the_check_fails_on_an_inline(check: Check, tmp_path: Path, monkeypatch: Patch) -> None:
    PATHS[check](monkeypatch)

    with pytest.raises(HeldTheLoop):
        await check(tmp_path, LoopGate(guard_seconds=0.2), monkeypatch)


async def test_threads_and_tasks_save_at_once_through_one_checkpointer(tmp_path: Path) -> None:
    handles: list[SaveHandle] = []
    async with Checkpointer(tmp_path, buffers=2) as checkpointer:

        async def from_a_task(step: int) -> None:
            handles.append(await checkpointer.save_async(state(step), step=step))

        def from_a_thread(step: int) -> None:
            handles.append(checkpointer.save(state(step), step=step))

        await asyncio.gather(
            *(from_a_task(step) for step in range(8)),
            *(asyncio.to_thread(from_a_thread, step) for step in range(8, 16)),
        )
        done = [await handle for handle in handles]
        found = {each.step: (await checkpointer.load_async(name=each.name))["x"][-1] for each in done}

    assert found == {step: float(step) for step in range(16)}


def test_a_loop_that_ends_during_the_copy_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copying, go_on = threading.Event(), threading.Event()
    handles: list[SaveHandle] = []

    class Slow:
        def state_dict(self) -> dict[str, Any]:
            copying.set()
            assert go_on.wait(GUARD_SECONDS)
            return state()

    async def main() -> None:
        saving = asyncio.create_task(checkpointer.save_async({"slow": Slow()}, step=1))
        await asyncio.to_thread(copying.wait, GUARD_SECONDS)
        assert not saving.done()

    with Checkpointer(tmp_path) as checkpointer:
        taken = checkpointer._copy_and_write

        def kept(*values: Any) -> None:
            handles.append(values[-1])
            taken(*values)

        checkpointer._copy_and_write = kept  # type: ignore[method-assign]
        asyncio.run(main())
        go_on.set()
        error = handles[0].exception(GUARD_SECONDS)
        after = checkpointer.save(state(), step=2).result()

    assert isinstance(error, SaveAbandoned)
    assert [entry.name for entry in checkpointer.store.entries()] == [after.name]
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []


def test_a_loop_that_ends_while_a_save_is_written_does_not_end_the_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = LoopGate(guard_seconds=GUARD_SECONDS)
    checkpointer = Checkpointer(SlowStore(tmp_path, gate))

    async def main() -> SaveHandle:
        handle = await checkpointer.save_async(state(), step=1)
        waiting = asyncio.ensure_future(wait(handle))
        await asyncio.sleep(0)
        assert not waiting.done()
        return handle

    async def wait(handle: SaveHandle) -> None:
        await handle

    handle = asyncio.run(main())
    assert not handle.done()
    gate._open.set()
    checkpointer.close()

    assert handle.result().step == 1
    assert caplog.records == []


ENDING = """
import asyncio, atexit, sys, threading
import numpy as np
from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.stores.file_store import FileStore

ends = threading.Event()
begin = FileStore.begin
def begin_at_the_end(self, name, size):
    ends.wait(60)
    return begin(self, name, size)
FileStore.begin = begin_at_the_end
checkpointer = Checkpointer(sys.argv[1])

async def main():
    await checkpointer.save_async({"x": np.ones(1000)}, step=1)

def save_at_exit():
    ends.set()
    try:
        checkpointer.save({"x": np.ones(1000)}, step=2)
        print("taken")
    except RuntimeError as error:  # Python 3.12 starts no thread any more
        print("refused", error)

atexit.register(save_at_exit)
asyncio.run(main())
"""


def test_the_end_of_an_asynchronous_program_finishes_its_save_and_takes_or_refuses_one_more(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING, str(tmp_path)], capture_output=True, text=True, timeout=GUARD_SECONDS
    )

    names = [entry.name for entry in FileStore(tmp_path).entries()]
    assert done.returncode == 0, done.stderr
    assert names == ["step-00000001", "step-00000002"][: 2 if done.stdout.startswith("taken") else 1]
    assert done.stdout.split()[0] in ("taken", "refused")
    assert not (tmp_path / ".partial").exists() or list((tmp_path / ".partial").iterdir()) == []
