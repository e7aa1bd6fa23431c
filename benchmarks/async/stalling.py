"""Stalling: how late an event loop comes to its beats while states are saved, exported and loaded.

In the trainer's loop it is the library that works, while requests are in flight; in the server's, its own engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path

import tinker

from benchmarks.checkpoints.states import State
from benchmarks.harness.context import Context
from benchmarks.harness.disk import remove
from benchmarks.harness.free_memory import AsItIs
from benchmarks.harness.rounds import Metrics, Rows, Turn
from benchmarks.live.beats import Beats, read_beats
from benchmarks.live.client import batch_of, new_run, session, step
from benchmarks.live.models import Model, new_model
from benchmarks.live.server import KEY
from chockstone.checkpoints import Checkpointer, LoopWatchdog

from .bystander import Bystander
from .loop import Loop, repeat, running
from .savers import new_checkpointer
from .scale import LORA_BYTES, F, L
from .setup import Setup, watched_server
from .watched import BEAT_SECONDS

SAVE, EXPORT, LOAD, IDLE = "saves", "exports", "loads", "none of it"
Action = Callable[[], Awaitable[object]]


def measure_trainer(context: Context, setup: Setup) -> Rows:
    context.describe(f"a beat every {BEAT_SECONDS * 1e3:.0f} ms, {setup.traffic.in_flight} requests in flight")
    rows: Rows = {}
    for name, make in setup.scale.states().items():
        state = make()
        with new_checkpointer(context.directory / name, is_paced=True) as checkpointer:
            library = _Library(state, checkpointer, context.directory / f"{name}-exported")
            turns: dict[str, Turn] = {
                row_of(name, SAVE): partial(_watch, setup, state, library.save),
                row_of(name, EXPORT): partial(_watch, setup, state, library.export),
                row_of(name, LOAD): partial(_watch, setup, state, library.load),
                row_of(name, IDLE): partial(_watch, setup, state, partial(_idle, setup.scale.watched_seconds)),
            }
            rows |= context.run_rounds(turns, repeats=setup.scale.rounds, memory=AsItIs(syncs=True))
    return rows


def row_of(state: str, action: str) -> str:
    return f"{state}: {action}"


async def _idle(seconds: float, _loop: Loop) -> None:
    await asyncio.sleep(seconds)


class _Library:
    """What a trainer does with its state, each away from its loop."""

    def __init__(self, state: State, checkpointer: Checkpointer, exported: Path) -> None:
        self._state = state
        self._checkpointer = checkpointer
        self._exported = exported
        self._steps = count(1)
        checkpointer.save(state.tree, name="first", pinned=True).result()  # so that there is one to export and load

    async def save(self, loop: Loop) -> None:
        async with loop.lock:
            handle = await self._checkpointer.save_async(loop.state.tree, step=next(self._steps))
        await handle

    async def export(self, _loop: Loop) -> None:
        await self._checkpointer.export_async("first", self._exported)
        await asyncio.to_thread(remove, self._exported)

    async def load(self, loop: Loop) -> None:
        async with loop.lock:
            await self._checkpointer.restore_async(loop.state.tree, name="first")


def _watch(setup: Setup, state: State, action: Callable[[Loop], Awaitable[object]]) -> Metrics:
    with Bystander(BEAT_SECONDS) as bystander:
        return asyncio.run(_watched(setup, state, action, bystander))


async def _watched(
    setup: Setup, state: State, action: Callable[[Loop], Awaitable[object]], bystander: Bystander
) -> Metrics:
    async with (
        running(state, setup.traffic) as loop,
        LoopWatchdog(threshold_seconds=2 * BEAT_SECONDS, interval_seconds=BEAT_SECONDS) as watchdog,
    ):
        await asyncio.to_thread(bystander.latest)
        watchdog.drain()
        began, ended, actions = await repeat(partial(action, loop), setup.scale.watched_seconds)
        stalls = watchdog.drain()
        elsewhere = bystander.latest()
    held = max((stall.held_seconds for stall in stalls.stalls), default=0.0)
    return {
        "p99": stalls.p99_seconds,
        "max": stalls.max_seconds,
        "elsewhere": elsewhere,
        "held": held,
        "seconds": (ended - began) / actions,
    }


def measure_server(context: Context, setup: Setup) -> Rows:
    context.describe(f"a beat every {BEAT_SECONDS * 1e3:.0f} ms, of the process that answers")
    directory = context.directory / "models"
    models = {
        L: new_model("lora", directory, parameters=setup.scale.lora_parameters),
        F: new_model("whole", directory, parameters=setup.scale.whole_parameters),
    }
    ranks = {L: models[L].rank_for(LORA_BYTES), F: 0}
    rows: Rows = {}
    with watched_server(context, models.values()) as server, session(server.url) as service:
        for name, model in models.items():
            context.say(f"{name}: a run to save")
            turns = _turns(setup, server.url, service, model, ranks[name])
            rows |= context.run_rounds(
                {row_of(name, action): turn for action, turn in turns.items()},
                repeats=setup.scale.rounds,
                memory=AsItIs(syncs=True),
            )
    return rows


def _turns(setup: Setup, url: str, service: tinker.ServiceClient, model: Model, rank: int) -> dict[str, Turn]:
    run = new_run(service, model.name, rank=rank)
    step(run, batch_of(model.draw(1, 17, seed=8)))  # now there are moments to save
    path = run.save_state("first").result().path
    rest = tinker.RestClient(base_url=url, api_key=KEY)
    names = count()

    async def save() -> None:
        await (await run.save_state_async("again", overwrite=True))

    async def export() -> None:
        exported = await (await run.save_weights_external_async(f"export-{next(names)}"))
        await rest.delete_checkpoint_from_tinker_path_async(exported.path)

    def resume() -> None:
        with session(url) as another:  # whose run is let go with it
            another.create_training_client_from_state_with_optimizer(path)

    async def idle() -> None:
        await asyncio.sleep(setup.scale.watched_seconds)

    actions: dict[str, Action] = {SAVE: save, EXPORT: export, LOAD: partial(asyncio.to_thread, resume), IDLE: idle}
    return {row: partial(_count, url, action, setup.scale.watched_seconds) for row, action in actions.items()}


def _count(url: str, action: Action, seconds: float) -> Metrics:
    with Bystander(BEAT_SECONDS) as bystander:
        before = read_beats(url)
        began, ended, actions = asyncio.run(repeat(action, seconds))
        beats: Beats = read_beats(url).since(before)
        elsewhere = bystander.latest()
    return {
        "p99": beats.quantile(0.99),
        "max": beats.longest,
        "elsewhere": elsewhere,
        "seconds": (ended - began) / actions,
    }
