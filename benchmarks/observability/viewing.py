"""Viewing: the console's first paint and the API's slowest answers, on a server with many runs and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Turn
from benchmarks.live.server import KEY, connect
from benchmarks.observability.browsing import browser_context, first_paint_seconds
from benchmarks.observability.setup import Setup

PAGES = {
    "Overview": "/console",
    "Runs": "/console/runs",
    "Run": "/console/runs/{run}",
    "Checkpoints": "/console/checkpoints",
    "Storage": "/console/storage",
}
ROUTES = {
    "server": "server",
    "runs, first page": "runs?limit=50",
    "runs, by size": "runs?limit=50&sort=-bytes",
    "runs, search": "runs?limit=50&query=experiment%2077",
    "run": "runs/{run}",
    "metrics of a run, for a chart": "training_runs/{run}/metrics?max_points=500",
    "checkpoints, first page": "checkpoints?limit=100",
    "checkpoints of a run": "training_runs/{run}/checkpoints",
}


def measure_paint(context: Context, setup: Setup) -> Rows:
    full = setup.full_server()
    context.describe(full.title)
    with browser_context() as browser:
        turns: dict[str, Turn] = {
            name: partial(_paint, browser, full.server.url + path.format(run=full.run_ids[0]))
            for name, path in PAGES.items()
        }
        return context.run_rounds(turns, repeats=setup.scale.paints)


def _paint(browser: object, url: str) -> Metrics:
    return {"seconds": first_paint_seconds(browser, url)}


def measure_api(context: Context, setup: Setup) -> Rows:
    full = setup.full_server()
    context.describe(full.title)
    connection = connect(full.server.url)

    def ask(path: str) -> None:
        connection.request("GET", f"/api/v1/{path}", headers={"X-API-Key": KEY})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}: {body[:200]!r}")

    return context.run_rounds(
        {
            name: partial(_ask_often, partial(ask, path.format(run=full.run_ids[0])), setup.scale.questions)
            for name, path in ROUTES.items()
        },
        repeats=setup.scale.asks,
    )


def _ask_often(ask: Callable[[], None], count: int) -> Metrics:
    seconds = sorted(_timed(ask) for _ in range(count))
    return {"median": seconds[count // 2], "p99": seconds[min(count - 1, round(count * 0.99))]}


def _timed(action: Callable[[], None]) -> float:
    began = perf_counter()
    action()
    return perf_counter() - began
