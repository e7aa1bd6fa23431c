"""Saving: ``save_state`` through the SDK, beside the library's own durable save of the same state."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import tinker

from benchmarks.checkpoints.rounds import Metrics, Series
from benchmarks.lifecycle.stage import Stage
from benchmarks.server.apart import Apart
from benchmarks.server.client import batch_of, new_run, session, step
from benchmarks.server.live import LiveServer
from benchmarks.server.models import Model

LORA, WHOLE = "lora", "whole"  # models by the run that is on them
OURS = {LORA: "L-like: save_state", WHOLE: "F-like: save_state"}
LIBRARY = {LORA: "L-like: library", WHOLE: "F-like: library"}


def measure_saving(stage: Stage) -> dict[str, Series]:
    series: dict[str, Series] = {}
    for kind in (LORA, WHOLE):
        series |= _measure(stage, kind)
    return series


def rank_for(model: Model, state_bytes: int) -> int:
    """The rank whose adapter takes about as much with both moments, in float32."""
    return max(1, round(state_bytes / (3 * 4 * model.adapter_parameters(1))))


def _measure(stage: Stage, kind: str) -> dict[str, Series]:
    model = stage.models[kind]
    rank = 0 if kind == WHOLE else rank_for(model, stage.scale.lora_bytes)
    with session(stage.server.url) as service, ExitStack() as stack:
        rest = service.create_rest_client()
        run = new_run(service, model.name, rank=rank)
        step(run, batch_of(model.draw(1, 17, seed=8)))  # now there are moments to save
        stage.say(f"{kind}: the state to compare with")
        original = archive_of(stage.server, run.save_state("original").result().path)
        size_bytes = original.stat().st_size
        library = stack.enter_context(
            Apart(
                "benchmarks.lifecycle.library",
                "Library",
                archive=str(original),
                directory=str(stage.directory / f"library-{kind}"),
            )
        )
        names = count()
        series = stage.run_rounds(
            {
                OURS[kind]: _saving(run, rest, lambda: f"save-{next(names)}"),
                LIBRARY[kind]: lambda: {"seconds": library.call("save", name=f"save-{next(names)}")},
            },
            repeats=stage.scale.saves,
        )
    for each in series.values():
        each.note = f"{size_bytes / 1e6:,.0f} MB"
    return series


def _saving(run: tinker.TrainingClient, rest: tinker.RestClient, name: Callable[[], str]) -> Callable[[], Metrics]:
    def save() -> Metrics:
        began = time.perf_counter()
        path = run.save_state(name()).result().path
        seconds = time.perf_counter() - began
        rest.delete_checkpoint_from_tinker_path(path).result()
        return {"seconds": seconds}

    return save


def archive_of(server: LiveServer, path: str) -> Path:
    """The file that a path of the server's stands for."""
    run_id, kind, name = path.removeprefix("tinker://").split("/")
    [archive] = (server.checkpoints / run_id.replace(":", ".") / kind).glob(f"{name}.*tar")
    return archive
