"""Kills an engine at every durable step of a run's life, and looks whether its client notices. See test_crash_steps.py.

Steps are those of crash_harness.py. The engine, journals, catalog and store are the real ones; only the worker is a
fake, which does sums and writes real archives. A child lives until its n-th step. The next child starts on the data
that it left. The client knows what was acknowledged and which answers it got: it asks again for the answers of
acknowledged requests, and sends the other requests again. In the end it has the same answers as an undisturbed
client, the weights are the same, the usage has counted each pass, sample and save once, and the history of the run has
each pass and step once.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson

from chockstone.catalog import Catalog
from chockstone.engine.config import Durability, StorageRules
from chockstone.engine.engine import Engine
from chockstone.engine.runs.commands import Save
from chockstone.engine.runs.run import Run
from chockstone.engine.samples.sampling import SamplerSource
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.wire.paths import Kind, TinkerPath
from faults.crash_harness import RUN, SESSION, Say, StepKiller, in_child, make_data, open_run, prepare_imports, store_of
from support.engine.damaged_data_dirs import NOON
from support.engine.fake_backend import FakeBackend

MOST_STEPS = 1000
ENOUGH_SECONDS = 30.0  # for all of it
LIVES = 12  # after which a run that is only killed now and then has ended
CALLS = ("link", "unlink", "replace", "rename", "mkdir", "rmdir", "pwrite", "pwritev", "posix_fallocate")
SYNCS = ("fsync", "fdatasync", "truncate", "ftruncate")
_DAY = timedelta(days=1)
# Sent without waiting for answers, up to each None. A pass adds its number, a step makes it count.
PLAN: tuple[tuple[str, Any] | None, ...] = (
    ("open", None),
    ("pass", 1),
    ("step", None),
    None,
    ("pass", 10),
    ("pass", 20),
    ("step", None),
    ("save", "a"),
    ("pass", 100),
    None,
    ("step", None),
    ("sampler", 0),
    ("sample", "abc"),
    ("overwrite", "a"),
    ("pass", 1000),
    ("step", None),
    None,
    ("load", "a"),
    ("pass", 5),
    ("step", None),
    ("save", "b"),
    ("sample", "abcde"),
    None,
)
MEASURED = ("pass", "step")
USED = {"training": 1136, "checkpoint": 3, "sampling_prefill": 8, "sampling_sample": 2}  # by the plan


@dataclass
class Memory:
    """What the client knows: it outlives every server."""

    acknowledged: dict[int, str] = field(default_factory=dict)  # place in the plan → request id
    heard: dict[int, Any] = field(default_factory=dict)
    weights: dict[str, int] | None = None  # of what is stored, at the end
    usage: dict[str, float] | None = None  # the same, as it is billed
    history: list[Any] | None = None  # points of the run

    def take(self, said: list[Any]) -> None:
        for word, place, value in said:
            if word == "acknowledged":
                assert self.acknowledged.setdefault(place, value) == value, f"request {place} got another id"
            elif word == "heard":
                assert self.heard.setdefault(place, value) == value, f"request {place} was answered differently"
            elif word == "used":
                self.usage = value
            elif word == "history":
                self.history = value
            else:
                self.weights = value


class Client:
    """Goes through the plan as the SDK would: in order, each request until it was taken, each result once."""

    def __init__(self, engine: Engine, memory: Memory, say: Say) -> None:
        self._engine = engine
        self._memory = memory
        self._say = say

    async def work(self) -> None:
        waiting: list[int] = []
        for place, request in enumerate(PLAN):
            if request is not None:
                if place not in self._memory.acknowledged:
                    self._memory.acknowledged[place] = await self._send(place, *request)
                    self._say(["acknowledged", place, self._memory.acknowledged[place]])
                waiting.append(place)
                continue
            for each in waiting:
                if each not in self._memory.heard:
                    self._say(["heard", each, await self._hear(each)])
            waiting = []
            await self._engine.flush_usage()

    async def _send(self, place: int, word: str, value: Any) -> str:
        training = self._engine.training
        if word == "open":
            return await open_run(self._engine)
        if word == "sample":
            source = SamplerSource(f"{SESSION}:sample:9", "ann", "tiny", None)
            return (await self._engine.sampling.submit(source, place, value.encode(), num_samples=1)).request_id
        live = await self._live()
        if word == "pass":
            return await training.forward_backward(live, place, str(value).encode())
        if word == "step":
            return await training.optim_step(live, place, {})
        if word == "sampler":
            return await training.save_for_sampling(live, place, value)
        if word in ("save", "overwrite"):
            path, overwrite = TinkerPath.of(RUN, Kind.WEIGHTS, value), word == "overwrite"
            return await training.save(live, place, Save(path, overwrite=overwrite))
        row = await self._engine.catalog.checkpoints.get(RUN, "weights", value, now=NOON)
        return await training.load(live, place, row, with_optimizer=True)

    async def _live(self) -> Run:
        live = await self._engine.wake(RUN)
        assert live is not None, "the run was acknowledged and is gone"
        return live

    async def _hear(self, place: int) -> Any:
        promise = await self._engine.find_promise(self._memory.acknowledged[place])
        assert promise is not None, f"request {place} was acknowledged and is not known"
        result = await promise.wait(60)
        assert result is not None, "no result in time"
        body = result.body
        self._engine.futures.delivered(promise)
        return orjson.loads(body) if body.startswith(b"{") else body.decode()


async def live(data: Path, memory: Memory, step: int, say: Say) -> None:
    """Serve one client until it has all its answers, or until a step."""
    killer = StepKiller(step, (*CALLS, *SYNCS))
    killer.watch()
    store = store_of(data)
    storage = ArchiveStorage(store)
    async with await Catalog.open(f"sqlite:///{data}/catalog.sqlite3") as catalog:
        backend = FakeBackend(store)
        engine = Engine(
            backend,
            catalog,
            storage,
            data=data,
            durability=Durability(steps=1),
            rules=StorageRules(reserve_bytes=0),
            now=lambda: NOON,
        )
        await engine.start()
        if not await catalog.sessions.list_unfinished():
            await catalog.sessions.create(SESSION, owner="ann", sdk_version="0.36.0", now=NOON)
        async with asyncio.timeout(ENOUGH_SECONDS):
            await Client(engine, memory, say).work()
            run = await engine.wake(RUN)
            assert run is not None, "the run is gone"
            await run.lane.drained()
        weight = backend.runs[RUN].weight
        await engine.stop()
        points = (await engine.history.read(RUN)).points
        say(["history", 0, [[point.position, point.step, dict(point.values)] for point in points]])
        used = await catalog.usage.list("ann", start=NOON - _DAY, end=NOON + _DAY)
        say(["used", 0, {use.type: use.amount for use in used if use.type != "storage"}])
        rows = [row async for row in catalog.checkpoints.iterate()]
        assert {row.state for row in rows} == {"ready"}
        say(["ended", killer.count, {row.name: backend.archives[row.archive] for row in rows} | {"run": weight}])
    storage.close()


def one_life(data: Path, memory: Memory, step: int) -> int | None:
    """How many steps it had, if it came to its end."""
    said, status = in_child(lambda say: live(data, memory, step, say))
    assert status == 0 or os.WIFSIGNALED(status), f"the server failed; heard was {memory.heard}"
    memory.take(said)
    return said[-1][1] if status == 0 else None


def fresh(data: Path) -> Memory:
    make_data(data)
    return Memory()


def assert_unnoticed(memory: Memory, undisturbed: Memory) -> None:
    for place, answer in undisturbed.heard.items():
        assert memory.heard[place] == answer, f"{PLAN[place]} at {place} was answered {memory.heard[place]}"
    assert memory.weights == undisturbed.weights, f"{memory.weights} is not {undisturbed.weights}"
    assert memory.usage == USED, f"{memory.usage} was counted"
    assert memory.history == undisturbed.history, f"the history is {memory.history}"
    assert len(memory.history or ()) == sum(request is not None and request[0] in MEASURED for request in PLAN)


def sweep(data: Path, *, first: int, stride: int) -> tuple[int, list[str]]:
    """Kill at every stride-th step; how often, and what went wrong."""
    undisturbed = fresh(data)
    steps = one_life(data, undisturbed, MOST_STEPS)
    assert steps is not None, "the plan takes too many steps"
    kills, failures = 0, []
    for step in range(first, steps, stride):
        memory = fresh(data)
        try:
            if one_life(data, memory, step) is None:
                kills += 1
                assert one_life(data, memory, 0) is not None
            assert_unnoticed(memory, undisturbed)
        except AssertionError as error:
            failures.append(f"killed before step {step} of {steps}: {error}")
            print(failures[-1], file=sys.stderr)
    return kills, failures


def stumble(data: Path, *, rounds: int, seed: int) -> tuple[int, list[str]]:
    """Kill life after life at a step drawn by lot; how often, and what went wrong."""
    undisturbed = fresh(data)
    steps = one_life(data, undisturbed, MOST_STEPS)
    assert steps is not None, "the plan takes too many steps"
    kills, failures = 0, []
    for number in range(rounds):
        randomness = random.Random(1000 * seed + number)
        places = [randomness.randrange(1, steps // 3) for _ in range(LIVES)]
        memory = fresh(data)
        try:
            for step in (*places, 0):
                if one_life(data, memory, step) is not None:
                    break
                kills += 1
            assert_unnoticed(memory, undisturbed)
        except AssertionError as error:
            failures.append(f"killed before the steps {places} of round {number}, seed {seed}: {error}")
            print(failures[-1], file=sys.stderr)
    return kills, failures


def main(home: Path, how: str, first: int, second: int) -> int:
    prepare_imports()
    if how == "every":
        kills, failures = sweep(home / "data", first=first, stride=second)
    else:
        kills, failures = stumble(home / "data", rounds=first, seed=second)
    print(f"{kills} kills, {len(failures)} of them noticed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
