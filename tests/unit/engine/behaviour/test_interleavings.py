"""Whatever comes between a client and its server: in the end all is as if nothing had.

A client trains two runs, saves, loads and makes samplers, in an order drawn by lot, and mostly without
waiting for answers. Meanwhile workers die, runs are parked, and servers are killed at any moment or
stopped, and started again. A few sums say what everything must come to.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from chockstone.catalog import CheckpointRow, RowMissing
from chockstone.checkpoints import open_store
from chockstone.engine.config import Durability, EngineLimits
from chockstone.engine.runs.commands import Save
from chockstone.wire.paths import Kind, TinkerPath
from support.engine.lives import Life, lived, state_of
from support.engine.making import NOW, Clock, damage, made_run, result_of, until

LIVES = 6
SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 200))]
PATIENT = EngineLimits(deaths=10**6, attempts=10**6)
State = tuple[int, int, int]  # weight, gradient, steps


@dataclass
class Request:
    run_id: str
    seq_id: int
    word: str
    value: Any
    expected: Any  # of the answer
    request_id: str | None = None  # once it was acknowledged


@dataclass
class Model:
    """What a run must be once all that it was asked is done."""

    state: State = (0, 0, 0)
    saved: dict[str, State] = field(default_factory=dict)
    samplers: dict[int, int] = field(default_factory=dict)

    def do(self, word: str, value: Any) -> Any:
        """What the answer must be."""
        weight, gradient, steps = self.state
        match word:
            case "pass":
                self.state = (weight, gradient + value, steps)
                return f"loss {value}"
            case "step":
                self.state = (weight + gradient, 0, steps + 1)
                return {"weight": weight + gradient, "steps": steps + 1}
            case "save" | "overwrite":
                self.saved[value] = self.state
                return value
            case "load":
                self.state = self.saved[value]
                return value
            case _:
                self.samplers[value] = weight
                return value


class Client:
    def __init__(self, luck: random.Random) -> None:
        self._luck = luck
        self.models = {"s:train:0": Model(), "s:train:1": Model()}
        self.requests: list[Request] = []
        self.life: Life

    async def act(self) -> None:
        await self.send(self._draw())

    def _draw(self) -> Request:
        """What to ask next."""
        run_id = self._luck.choice(list(self.models))
        model = self.models[run_id]
        word = self._luck.choices(
            ["pass", "step", "save", "overwrite", "load", "sampler"],
            [6, 4, 1, 1 if model.saved else 0, bool(model.saved), 1],
        )[0]
        number = len(self.requests) + 1
        value: Any = number
        if word == "save":
            value = f"n{number}"
        elif word in ("overwrite", "load"):
            value = self._luck.choice(list(model.saved))
        request = Request(run_id, number, word, value, model.do(word, value))
        self.requests.append(request)
        return request

    async def send(self, request: Request) -> None:
        life, training = self.life, self.life.engine.training
        run_id, seq_id, value = request.run_id, request.seq_id, request.value
        live = await life.run(run_id)
        match request.word:
            case "pass":
                request_id = await training.forward_backward(live, seq_id, str(value).encode())
            case "step":
                request_id = await training.optim_step(live, seq_id, {})
            case "save" | "overwrite":
                overwrite = request.word == "overwrite"
                path = TinkerPath.of(run_id, Kind.WEIGHTS, value)
                request_id = await training.save(live, seq_id, Save(path, overwrite=overwrite))
            case "load":
                row = await self._find(request)
                request_id = await training.load(live, seq_id, row, with_optimizer=True)
            case _:
                request_id = await training.save_for_sampling(live, seq_id, value)
        assert request.request_id in (None, request_id), "a repeat got another id"
        request.request_id = request_id

    async def send_again(self) -> None:
        """What it does not know to have arrived; and now and then what it does."""
        for request in self.requests:
            if request.request_id is None or self._luck.random() < 0.05:
                await self.send(request)

    async def check(self, request: Request) -> None:
        assert request.request_id is not None
        result = await result_of(self.life.engine, request.request_id)
        told = result.body.decode() if result.form == "pass" else orjson.loads(result.body)
        assert not result.is_failure, f"{request} was told {told}"
        match request.word:
            case "pass":
                assert told == request.expected
            case "step":
                assert told["metrics"] == request.expected, f"{request} was told {told}"
            case "save" | "overwrite" | "load":
                assert told["path"] == f"tinker://{request.run_id}/weights/{request.value}"
            case _:
                assert told["sampling_session_id"] == f"s:sample:{request.value}"

    async def _find(self, load: Request) -> CheckpointRow:
        """What it loads; if that is not saved yet, it waits until it is."""
        get = partial(self.life.catalog.checkpoints.get, load.run_id, "weights", load.value, now=NOW)
        try:
            return await get()
        except RowMissing:
            self.life.backend.let_everything_go()
            await self._hear_all_before(load)
            return await get()

    async def _hear_all_before(self, last: Request) -> None:
        for request in self.requests:
            if request.run_id == last.run_id and request.seq_id < last.seq_id:
                await self.check(request)

    async def check_everything(self) -> None:
        life = self.life
        for request in self.requests:
            await self.check(request)
        for run_id, model in self.models.items():
            assert await life.state(run_id) == model.state, run_id
            for name, state in model.saved.items():
                row = await life.catalog.checkpoints.get(run_id, "weights", name, now=NOW)
                assert state_of(life.backend._read(row.archive)) == state, f"{name} of {run_id}"
            for sampler, weight in model.samplers.items():
                row = await life.catalog.samplers.get(f"s:sample:{sampler}")
                assert life.backend._read(row.archive).weight == weight, f"sampler {sampler}"
            assert not any(receipt.mismatched for receipt in await life.receipts(run_id))


async def wander(luck: random.Random) -> None:
    """Let some time pass, or hardly any."""
    if luck.random() < 0.5:
        await asyncio.sleep(luck.random() / 200)
    for _ in range(luck.randrange(8)):
        await asyncio.sleep(0)


async def disturb(luck: random.Random, life: Life, clock: Clock) -> None:
    """A worker dies, runs are parked, or the disk is slow for a while."""
    match luck.choices(["not at all", "die", "park", "hold", "let go"], [60, 15, 5, 10, 10])[0]:
        case "die":
            life.backend.die("signal 9")
        case "park":
            life.backend.let_everything_go()
            clock.pass_seconds(3600)
            await life.engine.sessions.end_silent()
        case "hold":
            life.backend.let_everything_go()
            life.backend.hold("disk")
        case "let go":
            life.backend.let_everything_go()


def spoil(luck: random.Random, home: Path) -> None:
    """Damage the newest recovery archive of a run now and then, while no server runs."""
    store = open_store(home / "checkpoints")
    archives = sorted(entry.name for entry in store.entries() if entry.name.startswith("s.train.0/recovery/"))
    if archives and luck.random() < 0.3:
        damage(store, archives[-1])


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_that_comes_between_is_noticed(home: Path, seed: int) -> None:
    luck = random.Random(seed)
    client = Client(luck)
    durability = Durability(steps=luck.choice([1, 2, 4, 10**6]))
    for number in range(LIVES):
        clock = Clock()
        async with lived(home, durability=durability, limits=PATIENT, clock=clock) as life:
            client.life = life
            for model_seq_id in range(2):  # asked for again, they are what they were
                await made_run(life.engine, model_seq_id)
            await client.send_again()
            for _ in range(luck.randrange(3, 16)):
                await client.act()
                await wander(luck)
                await disturb(luck, life, clock)
            if number < LIVES - 1 and luck.random() < 0.8:
                sending = asyncio.create_task(client.act())
                await wander(luck)
                home = life.crash()
                heard = {request.seq_id for request in client.requests if request.request_id is not None}
                await sending
                for request in client.requests:  # what the dead server would have said it did not say
                    if request.seq_id not in heard:
                        request.request_id = None
        spoil(luck, home)

    async with lived(home, durability=durability, limits=PATIENT) as life:
        client.life = life
        await client.send_again()
        await client.check_everything()
        life.backend.die("signal 9")
        await until(lambda: all(live.lane.is_idle() for live in life.engine.runs))
        await client.check_everything()
