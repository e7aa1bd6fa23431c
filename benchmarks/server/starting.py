"""Starting: seconds from the start of the server's process until the SDK has one trained step of a small model.

Files are in the page cache, as on any start but the first after a boot. The client is running already.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import perf_counter

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Rows, Series
from benchmarks.live.client import batch_of, new_run, session, step
from benchmarks.live.models import Model
from benchmarks.live.server import LiveServer
from benchmarks.server.scale import SMALL
from benchmarks.server.setup import Setup

SERVER = "chockstone serve"
IMPORTS = "python -c 'import torch, transformers'"


def measure_starting(context: Context, setup: Setup) -> Rows:
    """One uncounted import comes first, so that the files are in the page cache."""
    model, starts = setup.models[SMALL], setup.scale.starts
    context.describe(f"{model.title} model")
    rows = {SERVER: Series(), IMPORTS: Series()}
    import_seconds()
    for number in range(starts):
        context.say(f"start {number + 1} of {starts}")
        rows[SERVER].add(_start(model, context.directory / f"start-{number}", threads=context.threads))
        rows[IMPORTS].add({"ready": import_seconds()})
    return rows


def _start(model: Model, home: Path, *, threads: int) -> dict[str, float]:
    batch = batch_of(model.draw(2, 33, seed=0))
    started = perf_counter()
    with LiveServer([model], home, threads=threads) as server:
        answered = perf_counter()
        with session(server.url) as service:
            run = new_run(service, model.name)
            ready = perf_counter()
            step(run, batch)
            stepped = perf_counter()
    return {"answers": answered - started, "ready": ready - started, "stepped": stepped - started}


def import_seconds() -> float:
    started = perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, transformers.models.qwen3.modeling_qwen3"], check=True)
    return perf_counter() - started
