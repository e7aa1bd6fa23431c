"""Nothing that a trainer does takes its event loop: each path is checked, and must fail the check when made inline."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from chockstone.checkpoints import LoopWatchdog, Stall
from chockstone.checkpoints import checkpointer as checkpointer_module
from chockstone.checkpoints.runtime import threads
from chockstone.checkpoints.runtime.watchdog import Stalls
from chockstone.checkpoints.saving.snapshot import SnapshotCopy
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.trainers import snapshot
from chockstone.trainers.reports import reports
from chockstone.trainers.reports.jsonl import JsonLines
from chockstone.trainers.rollouts import advantages, reward_pool, worker
from support.loop_gate import HeldTheLoop, InlineExecutor, LoopGate, inline_to_thread
from support.trainers.fakes import Digits, FakeServer, Ledger, Tokenizer, trainer

Patch = pytest.MonkeyPatch


async def run(home: Path, gate: LoopGate | None, **changes: Any) -> Any:
    made = trainer(home, Ledger(), **{"steps": 2, **changes})
    if gate is None:
        return await made.run()
    async with gate.watch():
        return await made.run()


def at_the_server(what: str) -> Check:
    async def check(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
        server.in_thread[what] = gate.wait
        await run(home, gate)

    return check


async def load(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
    await run(home, None)
    server.in_thread["load"] = gate.wait
    await run(home, gate, steps=3)


async def read_archive(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
    await run(home, None)
    patch.setattr(FileStore, "open", gate.before(FileStore.open))
    await run(home, gate, steps=3)


async def unpack(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
    await run(home, None)
    patch.setattr(snapshot, "unpack_groups", gate.before(snapshot.unpack_groups))
    await run(home, gate, steps=3)


async def pack(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
    patch.setattr(snapshot, "pack_groups", gate.before(snapshot.pack_groups))
    await run(home, gate, save_every=1)


async def final_save(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
    patch.setattr(FileStore, "begin", gate.before(FileStore.begin))
    await run(home, gate, save_every=0)


async def copy(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
    patch.setattr(SnapshotCopy, "run", gate.before(SnapshotCopy.run))
    await run(home, gate, save_every=1)


async def encode_a_step(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
    patch.setattr(advantages, "group_advantages", gate.before(advantages.group_advantages))
    await run(home, gate)


async def delete_old(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
    server.in_thread["delete"] = gate.wait
    await run(home, gate, save_every=1, keep=1)


async def reward(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
    environment = Digits()
    environment.judge = gate.before(environment.judge)
    await run(home, gate, environment=environment)


async def problem(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
    environment = Digits()
    patch.setattr(environment, "problem", gate.before(environment.problem))
    await run(home, gate, environment=environment)


async def evaluation_problems(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
    environment = Digits()
    patch.setattr(environment, "evaluation", gate.before(environment.evaluation))
    await run(home, gate, environment=environment, evaluate_every=1)


async def tokenizer(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
    patch.setattr(Tokenizer, "encode", gate.before(Tokenizer.encode))
    await run(home, gate)


async def detokenizer(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
    patch.setattr(Tokenizer, "decode", gate.before(Tokenizer.decode))
    await run(home, gate)


def told(method: str) -> Check:
    async def check(home: Path, server: FakeServer, gate: LoopGate, patch: Patch) -> None:
        patch.setattr(JsonLines, method, gate.before(getattr(JsonLines, method)))
        made = training_with_files(home)
        async with gate.watch():
            await made.run()

    return check


def training_with_files(home: Path) -> Any:
    return trainer(home, JsonLines(home / "files"), steps=2, evaluate_every=1)  # type: ignore[arg-type]


async def in_thread_inline(work: Callable[[], Any]) -> Any:
    return work()


def inline_threads(patch: Patch) -> None:
    inline_to_thread(patch)
    patch.setattr(threads, "in_thread", in_thread_inline)


def inline_pools(patch: Patch) -> None:
    for module in (reward_pool, worker, reports):
        patch.setattr(module, "ThreadPoolExecutor", lambda *values: InlineExecutor())


def inline_checkpointer(patch: Patch) -> None:
    patch.setattr(checkpointer_module, "_in_thread", in_thread_inline)


def inline_handles(patch: Patch) -> None:
    inline_checkpointer(patch)  # so that the loop does not turn between the copy and the wait

    async def wait(handle: Any) -> Any:
        return handle.result()

    patch.setattr(checkpointer_module.SaveHandle, "__await__", lambda handle: wait(handle).__await__())


Check = Callable[[Path, FakeServer, LoopGate, Patch], Awaitable[None]]
PATHS: dict[str, tuple[Check, Callable[[Patch], None]]] = {
    **{
        what: (at_the_server(what), inline_threads)
        for what in ("connect", "create", "tokenizer", "sync", "submit", "close")
    },
    "load": (load, inline_threads),
    "read_archive": (read_archive, inline_threads),
    "unpack": (unpack, inline_threads),
    "pack": (pack, inline_threads),
    "encode_a_step": (encode_a_step, inline_threads),
    "delete_old": (delete_old, inline_threads),
    "evaluation_problems": (evaluation_problems, inline_threads),
    "copy": (copy, inline_checkpointer),
    "final_save": (final_save, inline_handles),
    "reward": (reward, inline_pools),
    "problem": (problem, inline_pools),
    "encode": (tokenizer, inline_pools),
    "decode": (detokenizer, inline_pools),
    **{
        f"report_{method}": (told(method), inline_pools)
        for method in ("resume", "record", "evaluated", "event", "close")
    },
}


@pytest.mark.parametrize("path", PATHS)
async def test_the_loop_goes_on_during(path: str, server: FakeServer, tmp_path: Path, monkeypatch: Patch) -> None:
    check, _ = PATHS[path]

    await check(tmp_path, server, LoopGate(), monkeypatch)


@pytest.mark.parametrize("path", PATHS)
async def test_the_check_fails_on_an_inline(path: str, server: FakeServer, tmp_path: Path, monkeypatch: Patch) -> None:
    check, make_inline = PATHS[path]
    make_inline(monkeypatch)

    with pytest.raises(HeldTheLoop):
        await check(tmp_path, server, LoopGate(guard_seconds=0.05), monkeypatch)


@pytest.mark.parametrize("what", ["save_state", "save_hf", "save_sampler"])
async def test_a_save_that_takes_its_time_holds_up_neither_steps_nor_generation(
    what: str, server: FakeServer, tmp_path: Path
) -> None:
    ledger, held = Ledger(), server.hold(what)
    made = trainer(tmp_path, ledger, save_every=3, exports=("sampler", "hf"))
    task = asyncio.create_task(made.run())
    await server.until(what)
    while len(ledger.steps) < 6:  # as far as the next save
        await asyncio.sleep(0.001)

    assert server.answered["sample"] == 12
    assert not server.answered[what]
    held.set()
    await task


async def test_what_is_in_memory_when_training_begins_is_spared_by_the_garbage_collector(
    server: FakeServer, tmp_path: Path
) -> None:
    """A collection stops every thread, and the libraries of a tokenizer are hundreds of thousands of objects."""
    frozen: list[int] = []
    server.in_thread = {name: lambda: frozen.append(gc.get_freeze_count()) for name in ("tokenizer", "sync")}
    before, in_memory = gc.get_freeze_count(), [[number] for number in range(20_000)]

    await run(tmp_path, None, steps=1)

    assert frozen[0] <= before
    assert min(frozen[1:]) > frozen[0] + len(in_memory) // 2  # meanwhile some of the others have ended


async def test_what_holds_the_loop_is_told_when_it_is_twice_as_bad_as_before(
    server: FakeServer, tmp_path: Path, monkeypatch: Patch
) -> None:
    held = iter([9.0, 0.05, 0.3, 0.5, 0.7])  # the first is of the start

    def drain(watchdog: LoopWatchdog) -> Stalls:
        seconds = next(held)
        return Stalls(1, seconds, seconds, seconds, (Stall(1.0, "", 0.0), Stall(seconds, "  in reward\n", seconds)))

    monkeypatch.setattr(LoopWatchdog, "drain", drain)
    ledger = Ledger()

    await trainer(tmp_path, ledger, steps=4).run()

    told = [event for event in ledger.events if event.startswith("warning")]
    assert ["held for 0.30 s" in told[0], "held for 0.70 s" in told[1]] == [True, True]
    assert [event.endswith("belong in a thread:\n  in reward") for event in told] == [True, True]
    assert ledger.metrics[1]["loop/stall_max"] == 0.05
