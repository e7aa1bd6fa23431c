"""Ranks that save together, and die of it. Run as a script, by ``nursing.py``.

One process pays for the import of torch and forks the ranks of each job, which share nothing else. A job is a line of
JSON on standard input: the name of a life below, and what it needs to know. The answer is a line, too: what each rank
said, and how it ended. Nobody outlives the deadline of a job, nor the end of standard input.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DTensor asks for it
import torch.distributed as distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import chockstone.checkpoints.stores.s3_bucket  # noqa: F401  # as with torch, paid for once
from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import CheckpointError
from chockstone.checkpoints.stores.store import open_store

ROWS = {"file": 1003, "s3": 7001}  # in several parts of an upload; no world divides them evenly
SHAPES = {"weight": (ROWS["file"], 1024), "moment": (331, 1024), "narrow": (1, 1024)}
REPLICATED = 100_000


def whole(name: str, step: int) -> torch.Tensor:
    """What a tensor holds after a step, of its name and the step alone."""
    shape = SHAPES.get(name, (REPLICATED,))
    seed = 1000 * step + len(name)
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_state(step: int) -> dict[str, Any]:
    """The share of this rank in the state after that step."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    model = {
        name: DTensor.from_local(
            whole(name, step).tensor_split(_cuts(shape[0]))[mesh.get_rank()].clone(),
            mesh,
            [Shard(0)],
            shape=torch.Size(shape),
            stride=(shape[1], 1),
        )
        for name, shape in SHAPES.items()
    }
    return {"model": model, "replicated": whole("replicated", step), "step": step}


def _cuts(rows: int) -> list[int]:
    """Where torch.chunk cuts, which is how DTensor shards."""
    world_size = distributed.get_world_size()
    each = -(-rows // world_size)
    return [min(each * rank, rows) for rank in range(1, world_size)]


def train(state: dict[str, Any], step: int) -> None:
    """Change everything in place, as an optimizer does."""
    after = make_state(step)
    for name, tensor in state["model"].items():
        tensor.to_local().copy_(after["model"][name].to_local())
    state["replicated"].copy_(after["replicated"])
    state["step"] = step


def is_after(state: dict[str, Any], step: int) -> bool:
    expected = make_state(step)
    same = [torch.equal(state["model"][name].to_local(), expected["model"][name].to_local()) for name in SHAPES]
    return all(same) and torch.equal(state["replicated"], expected["replicated"]) and state["step"] == step


class Mortal:
    """A store of which one call is the last thing this process does, or waits for something, once it is armed."""

    def __init__(self, url: str, at: str | None, act: Callable[[], None]) -> None:
        """``at``: a call and which one of its kind it is, as in ``"write 2"``."""
        self._store = open_store(url)
        self._at = at
        self._act = act
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self.is_armed = False

    def passes(self, call: str) -> None:
        with self._lock:
            if not self.is_armed:
                return
            self._counts[call] = self._counts.get(call, 0) + 1
            if f"{call} {self._counts[call]}" != self._at:
                return
        self._act()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def begin(self, name: str, size: int) -> Any:
        self.passes("begin")
        return _MortalSink(self._store.begin(name, size), self)

    def join(self, name: str, size: int, ticket: str) -> Any:
        self.passes("join")
        return _MortalSink(self._store.join(name, size, ticket), self)


class _MortalSink:
    def __init__(self, sink: Any, store: Mortal) -> None:
        self._sink = sink
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def write_at(self, offset: int, data: memoryview) -> None:
        self._store.passes("write")
        self._sink.write_at(offset, data)

    def finish(self) -> str:
        self._store.passes("finish")
        receipt: str = self._sink.finish()
        self._store.passes("finished")
        return receipt

    def settle(self, receipts: list[str]) -> None:
        self._store.passes("settle")
        self._sink.settle(receipts)

    def commit(self, *, overwrite: bool) -> None:
        self._store.passes("commit")
        self._sink.commit(overwrite=overwrite)
        self._store.passes("committed")


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


def attempt(what: str, work: Callable[[], object]) -> bool:
    try:
        work()
    except CheckpointError as error:
        tell(failed=what, kind=type(error).__name__, text=str(error))
        return False
    tell(done=what)
    return True


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # it comes at once, but not always before the next line


def is_victim(job: dict[str, Any]) -> bool:
    return bool(distributed.get_rank() == job.get("victim"))


class Fatal:
    """An object whose state is death: it comes while the others copy theirs."""

    def state_dict(self) -> dict[str, Any]:
        die()
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


def save_and_die(job: dict[str, Any]) -> None:
    """Save twice; one rank dies of the second. The others say what they heard, and save once more."""
    at = job["at"] if is_victim(job) else None
    store = Mortal(job["url"], at, die)
    checkpointer = Checkpointer(store, prefix="run", rank_timeout_seconds=job["patience"])
    state = make_state(1)
    attempt("first", lambda: checkpointer.save(state, step=1).result())
    train(state, 2)
    store.is_armed = True
    if at == "idle":
        die()
    fatal = {"fatal": Fatal()} if at == "copy" else {}
    attempt("second", lambda: checkpointer.save({**state, **fatal}, step=2).result())
    attempt("third", lambda: checkpointer.save(state, step=3).result())
    attempt("close", checkpointer.close)


def fall_silent(job: dict[str, Any]) -> None:
    """One rank lives, but never saves a second time."""
    checkpointer = Checkpointer(job["url"], prefix="run", rank_timeout_seconds=job["patience"])
    state = make_state(1)
    attempt("first", lambda: checkpointer.save(state, step=1).result())
    heard = Path(job["directory"]) / "heard"
    if is_victim(job):
        while not heard.exists():
            time.sleep(0.02)
        return
    attempt("second", lambda: checkpointer.save(state, step=2).result())
    heard.touch()


def go_on(job: dict[str, Any]) -> None:
    """What a new life of the job does: resume, go on, save."""
    with Checkpointer(job["url"], prefix="run", rank_timeout_seconds=job["patience"]) as checkpointer:
        state = make_state(0)
        checkpointer.restore(state)
        tell(resumed=state["step"], is_whole=is_after(state, state["step"]))
        train(state, job["step"])
        attempt("save", lambda: checkpointer.save(state, step=job["step"]).result())


def read(job: dict[str, Any]) -> None:
    """What is in the checkpoint of one step."""
    with Checkpointer(job["url"], prefix="run") as checkpointer:
        state = make_state(0)
        checkpointer.restore(state, name=f"step-{job['step']:08d}")
        tell(read=state["step"], is_whole=is_after(state, job["step"]))


def be_slow(job: dict[str, Any]) -> None:
    """One rank is stuck in its write while the others train on and want to save again."""
    directory = Path(job["directory"])

    def wait_for_release() -> None:
        (directory / "stuck").touch()
        while not (directory / "released").exists():
            time.sleep(0.02)

    store = Mortal(job["url"], "write 1" if is_victim(job) else None, wait_for_release)
    store.is_armed = True
    with Checkpointer(store, prefix="run", rank_timeout_seconds=job["patience"]) as checkpointer:
        state = make_state(1)
        handles = [checkpointer.save(state, step=1)]
        while not (directory / "stuck").exists():
            time.sleep(0.02)
        train(state, 2)  # in place, while step 1 is still being written
        saving = threading.Thread(target=lambda: handles.append(checkpointer.save(state, step=2)))
        saving.start()
        saving.join(0.5)
        tell(took_a_buffer_in_use=not saving.is_alive(), was_acknowledged=handles[0].done())
        (directory / f"seen-{distributed.get_rank()}").touch()
        if is_victim(job):
            while len(list(directory.glob("seen-*"))) < distributed.get_world_size():
                time.sleep(0.02)
            (directory / "released").touch()
        saving.join()
        for handle in handles:
            handle.result()
        tell(saved=[handle.name for handle in handles])


LIVES = {life.__name__: life for life in (save_and_die, fall_silent, go_on, read, be_slow)}


def live(job: dict[str, Any], rank: int) -> None:
    directory = job["directory"]
    for stream, name in ((1, "said"), (2, "errors")):
        os.dup2(os.open(f"{directory}/{name}-{rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), stream)
    SHAPES["weight"] = (ROWS[job["url"].partition(":")[0]], 1024)
    world_size = job["world_size"]
    meeting = distributed.FileStore(f"{directory}/meeting", world_size)
    patience = timedelta(seconds=200)
    distributed.init_process_group("gloo", store=meeting, rank=rank, world_size=world_size, timeout=patience)
    LIVES[job["life"]](job)


def be_born(job: dict[str, Any], rank: int) -> int:
    if child := os.fork():
        return child
    try:
        signal.alarm(job["deadline_seconds"])
        live(job, rank)
        sys.stdout.flush()
        os._exit(0)
    except BaseException:  # told to whoever reads the exit code
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def main() -> None:
    gc.freeze()  # a collection would copy every page that the ranks share with this process
    for line in sys.stdin:
        job = json.loads(line)
        children = [be_born(job, rank) for rank in range(job["world_size"])]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
