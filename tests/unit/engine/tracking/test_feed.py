"""A feed between a real history, a real catalog and a tracker that can be told to fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest

from chockstone.catalog import Catalog
from chockstone.engine.history.points import Measurement
from chockstone.engine.history.step_history import StepHistory
from chockstone.engine.tracking.feed import TrackerFeed
from chockstone.engine.tracking.sent_marks import SentMarks
from chockstone.engine.tracking.tracker_process import TrackerBatch, TrackerFailed, TrackerProcess
from support.catalog.making import NOW, after, make_run, make_session, save
from support.postgres import catalog_url

RUN = "s:train:0"


class Taking(TrackerProcess):
    """Takes batches in this process."""

    def __init__(self) -> None:
        super().__init__("mlflow", Path("/nonexistent"))
        self.batches: list[TrackerBatch] = []
        self.failures: dict[str, str] = {}  # by run

    async def send(self, batch: TrackerBatch) -> None:
        if (reason := self.failures.get(batch.run.run_id)) is not None:
            raise TrackerFailed(reason)
        self.batches.append(batch)

    def positions(self, run_id: str = RUN) -> list[int]:
        return [point.position for batch in self.batches if batch.run.run_id == run_id for point in batch.points]


@dataclass
class World:
    home: Path
    catalog: Catalog
    history: StepHistory
    clock: list[float] = field(default_factory=lambda: [1000.0])
    now: datetime = NOW

    def feed(self, tracker: TrackerProcess) -> TrackerFeed:
        return TrackerFeed(
            tracker,
            self.history,
            self.catalog,
            SentMarks(self.home / "sent"),
            now=lambda: self.now,
            monotonic=lambda: self.clock[0],
            gather_seconds=0.01,
        )

    async def add(self, *values: dict[str, float], run_id: str = RUN) -> None:
        await self.history.record_client(
            run_id, [Measurement(1_800_000_000.0, 1, each) for each in values], owner="ann"
        )


@asynccontextmanager
async def opened(home: Path) -> AsyncIterator[World]:
    async with await Catalog.open(catalog_url(home)) as catalog:
        history = StepHistory(home / "history")
        yield World(home, catalog, history)
        await history.stop()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path) as made:
        await make_session(made.catalog)
        await make_run(made.catalog, user_metadata={"task": "sums"})
        yield made


async def test_points_are_sent_once_and_in_order(world: World) -> None:
    tracker = Taking()
    feed = world.feed(tracker)
    await world.add({"loss": 3.0}, {"learning_rate": 1e-4})
    feed.note(RUN)
    await feed.send_waiting()
    await world.add({"loss": 2.0})
    feed.note(RUN)
    feed.note(RUN)
    await feed.send_waiting()
    await feed.send_waiting()

    assert tracker.positions() == [1, 2, 3]
    run = tracker.batches[0].run
    assert (run.rank, run.owner, run.base_model, run.learning_rate) == (32, "local", "Qwen/Qwen3-8B", 1e-4)
    assert run.metadata == {"task": "sums"}
    assert tracker.batches[-1].run.learning_rate == 1e-4  # kept for later batches


async def test_the_next_server_sends_what_was_missed_and_nothing_twice(world: World) -> None:
    first, second = Taking(), Taking()
    feed = world.feed(first)
    await world.add({"learning_rate": 1e-4}, {"loss": 3.0})
    feed.note(RUN)
    await feed.send_waiting()
    await world.add({"loss": 2.0}, {"loss": 1.0})  # and the server is killed

    later = world.feed(second)
    await later.note_missed()
    await later.send_waiting()

    assert first.positions() == [1, 2]
    assert second.positions() == [3, 4]


async def test_a_first_start_sends_no_runs_of_before_until_they_train_on(world: World) -> None:
    tracker = Taking()
    feed = world.feed(tracker)
    await world.add({"learning_rate": 1e-4})
    await feed.note_missed()
    await feed.send_waiting()
    assert tracker.batches == []

    await world.add({"loss": 1.0})
    feed.note(RUN)
    await feed.send_waiting()

    assert tracker.positions() == [1, 2]


async def test_a_run_that_was_not_used_since_is_not_read_again(world: World) -> None:
    tracker = Taking()
    feed = world.feed(tracker)
    world.now = after(hours=1)
    await feed.send_waiting()  # all is sent, an hour after the run was last used
    await world.add({"learning_rate": 1e-4})

    later = world.feed(tracker)
    await later.note_missed()
    await later.send_waiting()

    assert tracker.batches == []


async def test_many_points_are_sent_in_batches(world: World) -> None:
    tracker = Taking()
    feed = world.feed(tracker)
    await world.add({"learning_rate": 1e-4}, *({"loss": 1.0} for _ in range(999)))
    await world.add(*({"loss": 1.0} for _ in range(200)))
    feed.note(RUN)
    await feed.send_waiting()

    assert tracker.positions() == list(range(1, 1201))
    assert [len(batch.points) for batch in tracker.batches] == [500, 500, 200]


async def test_a_failing_tracker_is_logged_once_and_gets_all_points_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Taking()
    tracker.failures[RUN] = "no route to host"
    feed = world.feed(tracker)
    await world.add({"learning_rate": 1e-4})
    feed.note(RUN)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            await feed.send_waiting()
            world.clock[0] += 1000.0
        tracker.failures.clear()
        await feed.send_waiting()

    assert tracker.positions() == [1]
    failed = [record for record in caplog.records if "tracker failed" in record.message]
    assert len(failed) == 1
    assert "no route to host" in failed[0].message
    assert "tracker works again tracker=mlflow" in caplog.text


async def test_a_failed_run_waits_longer_each_time_and_delays_no_other(world: World) -> None:
    await make_run(world.catalog, model_seq_id=1)
    tracker = Taking()
    tracker.failures[RUN] = "refused"
    feed = world.feed(tracker)
    for run_id in (RUN, "s:train:1"):
        await world.add({"learning_rate": 1e-4}, run_id=run_id)
        feed.note(run_id)
    await feed.send_waiting()
    assert tracker.positions("s:train:1") == [1]

    tracker.failures.clear()
    world.clock[0] += 4.0
    await feed.send_waiting()
    assert tracker.positions() == []
    world.clock[0] += 2.0
    await feed.send_waiting()
    assert tracker.positions() == [1]


async def test_a_new_run_is_sent_with_its_learning_rate(world: World) -> None:
    tracker = Taking()
    feed = world.feed(tracker)
    await world.add({"loss": 3.0})
    feed.note(RUN)
    await feed.send_waiting()
    assert tracker.batches == []

    await world.add({"learning_rate": 0.5})
    world.clock[0] += 1.0
    await feed.send_waiting()

    assert tracker.batches[0].run.learning_rate == 0.5
    assert tracker.positions() == [1, 2]


async def test_a_run_that_takes_no_optimizer_step_is_sent_without_one(world: World) -> None:
    tracker = Taking()
    feed = world.feed(tracker)
    await world.add({"loss": 3.0})
    feed.note(RUN)
    await feed.send_waiting()
    world.clock[0] += 11.0
    await feed.send_waiting()

    assert tracker.positions() == [1]
    assert tracker.batches[0].run.learning_rate is None


async def test_each_checkpoint_is_sent_once(world: World) -> None:
    tracker = Taking()
    feed = world.feed(tracker)
    await world.add({"learning_rate": 1e-4})
    await save(world.catalog, "first", step=1)
    feed.note(RUN)
    await feed.send_waiting()
    await save(world.catalog, "second", step=2)
    feed.note(RUN)
    await feed.send_waiting()
    await feed.flush()

    sent = [(each.step, each.path) for batch in tracker.batches for each in batch.checkpoints]
    assert sent == [(1, f"tinker://{RUN}/weights/first"), (2, f"tinker://{RUN}/weights/second")]


async def test_a_checkpoint_that_the_tracker_refused_is_sent_again(world: World) -> None:
    tracker = Taking()
    tracker.failures[RUN] = "refused"
    feed = world.feed(tracker)
    await world.add({"learning_rate": 1e-4})
    await save(world.catalog, "first", step=1)
    feed.note(RUN)
    await feed.send_waiting()
    tracker.failures.clear()
    world.clock[0] += 3600.0
    await feed.send_waiting()

    assert [each.step for batch in tracker.batches for each in batch.checkpoints] == [1]


async def test_a_removed_run_is_forgotten(world: World) -> None:
    tracker = Taking()
    feed = world.feed(tracker)
    await world.add({"learning_rate": 1e-4})
    feed.note(RUN)
    await feed.send_waiting()
    await world.catalog.runs.delete(RUN)
    feed.note(RUN)
    await feed.send_waiting()

    assert [path.name for path in (world.home / "sent").iterdir()] == ["caught-up"]


async def test_the_next_server_forgets_runs_that_were_removed(world: World) -> None:
    tracker = Taking()
    feed = world.feed(tracker)
    await world.add({"learning_rate": 1e-4})
    feed.note(RUN)
    await feed.send_waiting()
    await world.catalog.runs.delete(RUN)

    await world.feed(tracker).note_missed()

    assert [path.name for path in (world.home / "sent").iterdir()] == ["caught-up"]


async def test_keep_sends_what_is_noted_and_stops_when_told(world: World) -> None:
    tracker = Taking()
    feed = world.feed(tracker)
    keeping = asyncio.create_task(feed.keep())
    await world.add({"learning_rate": 1e-4})
    feed.note(RUN)
    async with asyncio.timeout(10):
        while not tracker.batches:
            await asyncio.sleep(0.01)
        feed.stop()
        await keeping
        await world.add({"loss": 1.0})
        await feed.flush()

    assert tracker.positions() == [1, 2]
