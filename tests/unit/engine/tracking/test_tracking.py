"""Real trackers of a server: a real process that writes event files, beside one that hangs."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chockstone.catalog import Catalog
from chockstone.engine.history.points import Measurement
from chockstone.engine.history.step_history import StepHistory
from chockstone.engine.tracking.tracker_process import TrackerProcess
from chockstone.engine.tracking.tracking import Tracking
from chockstone.trackers.tracker import TrackerKind
from support.catalog.making import NOW, make_run, make_session
from support.postgres import catalog_url

RUN = "s:train:0"


def losses(home: Path) -> list[float]:
    (directory,) = (home / "tracking" / "tensorboard").iterdir()
    shown = EventAccumulator(str(directory))
    shown.Reload()
    return [event.value for event in shown.Scalars("loss")]


async def record(history: StepHistory, *values: float) -> None:
    await history.record_client(RUN, [Measurement(1_800_000_000.0, 1, {"loss": each}) for each in values], owner="ann")


async def test_points_reach_the_tracker_and_the_next_server_continues(tmp_path: Path) -> None:
    async with await Catalog.open(catalog_url(tmp_path)) as catalog:
        await make_session(catalog)
        await make_run(catalog)
        for values in ((3.0, 2.0), (1.0,)):
            history = StepHistory(tmp_path / "history")
            tracking = Tracking(
                ["tensorboard"], tmp_path / "tracking", history, catalog, now=lambda: NOW, last_seconds=60
            )
            tracking.start()
            await asyncio.sleep(0)  # the subscription begins
            await record(history, *values)
            await history.stop()
            async with asyncio.timeout(90):
                await tracking.stop()

    assert losses(tmp_path) == [3.0, 2.0, 1.0]


async def test_a_server_without_trackers_starts_nothing(tmp_path: Path) -> None:
    async with await Catalog.open(catalog_url(tmp_path)) as catalog:
        history = StepHistory(tmp_path / "history")
        tracking = Tracking([], tmp_path / "tracking", history, catalog, now=lambda: NOW, last_seconds=60)
        tracking.start()
        await tracking.stop()
        await history.stop()

    assert not (tmp_path / "tracking").exists()


async def test_a_tracker_that_hangs_does_not_hold_up_the_end_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def hanging(kind: TrackerKind, directory: Path) -> TrackerProcess:
        return TrackerProcess(kind, directory, command=(sys.executable, "-c", "import time; time.sleep(600)"))

    async with await Catalog.open(catalog_url(tmp_path)) as catalog:
        await make_session(catalog)
        await make_run(catalog)
        history = StepHistory(tmp_path / "history")
        tracking = Tracking(
            *(["mlflow"], tmp_path / "tracking", history, catalog), now=lambda: NOW, last_seconds=0.5, process=hanging
        )
        tracking.start()
        await asyncio.sleep(0)
        await record(history, 1.0)
        await history.stop()
        with caplog.at_level(logging.WARNING):
            async with asyncio.timeout(20):
                await tracking.stop()

    assert "last points not sent, the next server sends them tracker=mlflow" in caplog.text
