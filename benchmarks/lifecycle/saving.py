"""Saving: ``save_state`` through the SDK, beside the library's own durable save of the same state."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count

import tinker

from benchmarks.harness.context import Context
from benchmarks.harness.remote import RemoteObject
from benchmarks.harness.rounds import Metrics, Rows, Turn
from benchmarks.lifecycle.scale import LORA, WHOLE
from benchmarks.lifecycle.setup import Setup
from benchmarks.live.client import batch_of, new_run, session, step

OURS = {LORA: "L-like: save_state", WHOLE: "F-like: save_state"}
LIBRARY = {LORA: "L-like: library", WHOLE: "F-like: library"}


def measure_saving(context: Context, setup: Setup) -> Rows:
    lora, whole = (setup.models[kind] for kind in (LORA, WHOLE))
    rank = lora.rank_for(setup.scale.lora_bytes)
    context.describe(f"L-like: LoRA of rank {rank} on {lora.title}; F-like: {whole.title} trained whole")
    return _measure(context, setup, LORA, rank=rank) | _measure(context, setup, WHOLE, rank=0)


def _measure(context: Context, setup: Setup, kind: str, *, rank: int) -> Rows:
    model = setup.models[kind]
    with session(setup.server.url) as service, ExitStack() as stack:
        rest = service.create_rest_client()
        run = new_run(service, model.name, rank=rank)
        step(run, batch_of(model.draw(1, 17, seed=8)))  # now there are moments to save
        context.say(f"{kind}: the state to compare with")
        original = setup.server.archive_of(run.save_state("original").result().path)
        size_bytes = original.stat().st_size
        library = stack.enter_context(
            RemoteObject(
                "benchmarks.lifecycle.library",
                "LibraryBaseline",
                archive=str(original),
                directory=str(context.directory / f"library-{kind}"),
            )
        )
        names = count()
        rows = context.run_rounds(
            {
                OURS[kind]: _saving(run, rest, lambda: f"save-{next(names)}"),
                LIBRARY[kind]: lambda: {"seconds": library.call("save", name=f"save-{next(names)}")},
            },
            repeats=setup.scale.saves,
        )
    for each in rows.values():
        each.note = f"{size_bytes / 1e6:,.0f} MB"
    return rows


def _saving(run: tinker.TrainingClient, rest: tinker.RestClient, name: Callable[[], str]) -> Turn:
    def save() -> Metrics:
        began = time.perf_counter()
        path = run.save_state(name()).result().path
        seconds = time.perf_counter() - began
        rest.delete_checkpoint_from_tinker_path(path).result()
        return {"seconds": seconds}

    return save


def library_of(row: str) -> str:
    """The row of the library's save of the same state."""
    return next(LIBRARY[kind] for kind in LIBRARY if row in (OURS[kind], LIBRARY[kind]))
