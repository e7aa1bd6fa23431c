"""Filling: runs, checkpoints and histories in the data directory of a server that has not been started yet.

The rows are made with the catalog's own functions and the points with those of the step history. Archives do not exist:
the server's background check of archives is off.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

from chockstone.catalog import Catalog, RunProgress
from chockstone.engine.history.points import Measurement
from chockstone.engine.history.step_history import StepHistory

OWNER = "local"
RUNS_PER_SESSION = 10
WITH_HISTORY = 10  # runs
PARKED_EVERY = 10  # the other runs have ended


def fill(data: Path, *, model: str, runs: int, checkpoints: int, points: int) -> list[str]:
    """Returns the ids of the runs; the first ones have a history."""
    data.mkdir(parents=True)
    return asyncio.run(_fill(data, model, runs, checkpoints, points))


async def _fill(data: Path, model: str, runs: int, checkpoints: int, points: int) -> list[str]:
    now = datetime.now(UTC)
    run_ids: list[str] = []
    async with await Catalog.open(f"sqlite:///{data / 'catalog.sqlite3'}") as catalog:
        for first in range(0, runs, RUNS_PER_SESSION):
            session_id = str(uuid.UUID(int=first + 1))
            await catalog.sessions.create(session_id, owner=OWNER, sdk_version="0.36.0", now=now)
            for number in range(min(RUNS_PER_SESSION, runs - first)):
                row = await catalog.runs.create(
                    session_id,
                    number,
                    owner=OWNER,
                    base_model=model,
                    spec={"rank": 8, "seed": number},
                    user_metadata={"name": f"experiment {first + number}", "task": "sums"},
                    state="parked" if (first + number) % PARKED_EVERY == 0 else "unloaded",
                    now=now - timedelta(minutes=first + number),
                )
                run_ids.append(row.run_id)
        await catalog.runs.record_progress(
            {run_id: RunProgress(steps=100 + n, last_loss=3.0 / (n + 1)) for n, run_id in enumerate(run_ids)}
        )
        for number in range(checkpoints):
            run_id = run_ids[number % runs]
            await catalog.checkpoint_saves.register(
                run_id=run_id,
                kind="weights",
                name=f"step-{number}",
                owner=OWNER,
                archive=f"{run_id.replace(':', '.')}/weights/step-{number}.{number}",
                base_model=model,
                spec={"rank": 8, "seed": 0},
                created_at=now - timedelta(seconds=checkpoints - number),
                size_bytes=1_000_000 + number,
                user_metadata={"loss": "0.1234"},
                step=number,
            )
    await _fill_histories(data, run_ids[:WITH_HISTORY], points)
    return run_ids


async def _fill_histories(data: Path, run_ids: list[str], points: int) -> None:
    history = StepHistory(data / "history")
    began = datetime.now(UTC).timestamp() - points
    for run_id in run_ids:
        for first in range(0, points, 1000):
            measured = [
                Measurement(began + step, step, {"loss": 2.0 + math.cos(step / 50) / (1 + step / 500), "tokens": 512.0})
                for step in range(first, min(points, first + 1000))
            ]
            await history.record_client(run_id, measured, owner="local")
    await history.stop()
