from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.engine.runs.lanes import Lane, Turn
from chockstone.telemetry.origin import current_request_id, working_for


@dataclass(frozen=True)
class Arrival:
    """A request: how long it waits on the way in, and how long it then runs, in turns of the loop."""

    late: int
    runs: int
    releases_after: int | None  # None: only when it ends


@dataclass
class Witness:
    """What happened in a lane, and the most that was ever at its head at once."""

    started: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    at_head: int = 0
    most_at_head: int = 0

    def turn(self, number: int, arrival: Arrival) -> Turn:
        async def turn(release: Callable[[], None]) -> None:
            self.started.append(number)
            self.at_head += 1
            self.most_at_head = max(self.most_at_head, self.at_head)
            for moment in range(arrival.runs):
                if moment == arrival.releases_after:
                    self.at_head -= 1
                    release()
                    release()  # said twice, meant once
                await asyncio.sleep(0)
            if arrival.releases_after is None or arrival.releases_after >= arrival.runs:
                self.at_head -= 1
            self.ended.append(number)

        return turn


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        late=st.integers(0, 2),
        runs=st.integers(0, 4),
        releases_after=st.none() | st.integers(0, 4),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(ARRIVALS)
def test_each_turn_runs_once_in_order_of_arrival_and_one_at_a_time(arrivals: list[Arrival]) -> None:
    """Whatever the gaps, and whoever lets the next one start early."""
    witness = Witness()

    async def scenario() -> None:
        lane = Lane()
        for number, arrival in enumerate(arrivals):
            for _ in range(arrival.late):
                await asyncio.sleep(0)
            lane.add(witness.turn(number, arrival))
        await lane.drained()
        assert lane.waiting == 0

    asyncio.run(scenario())

    assert witness.started == list(range(len(arrivals)))
    assert sorted(witness.ended) == witness.started
    assert witness.most_at_head <= 1


@settings(deadline=None)
@given(ARRIVALS, st.integers(0, 20))
def test_a_halted_lane_ends_what_it_began_and_begins_nothing(arrivals: list[Arrival], moment: int) -> None:
    witness = Witness()

    async def scenario() -> None:
        lane = Lane()
        for number, arrival in enumerate(arrivals):
            lane.add(witness.turn(number, arrival))
        for _ in range(moment):
            await asyncio.sleep(0)
        lane.halt()
        begun = len(witness.started)
        await lane.drained()
        assert lane.is_idle()
        assert len(witness.started) <= begun + 1, "only one whose turn had come, and which had not run yet"
        assert lane.waiting == len(arrivals) - len(witness.started)
        lane.add(witness.turn(1000, Arrival(0, 0, None)))
        await lane.drained()

    asyncio.run(scenario())

    assert sorted(witness.ended) == witness.started == list(range(len(witness.started)))


async def nothing(release: Callable[[], None]) -> None:
    pass


def gated() -> tuple[asyncio.Event, Turn]:
    gate = asyncio.Event()

    async def turn(release: Callable[[], None]) -> None:
        await gate.wait()

    return gate, turn


async def test_a_lane_is_drained_only_when_what_was_released_early_has_ended() -> None:
    lane = Lane()
    gate = asyncio.Event()
    released = asyncio.Event()

    async def save(release: Callable[[], None]) -> None:
        release()
        released.set()
        await gate.wait()

    lane.add(save)
    lane.add(nothing)
    draining = asyncio.create_task(lane.drained())
    await released.wait()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert not draining.done() and not lane.is_idle()
    gate.set()
    await draining
    assert lane.is_idle()


async def test_a_halted_lane_is_drained_only_when_what_was_released_early_has_ended() -> None:
    lane = Lane()
    gate, turn = gated()

    async def save(release: Callable[[], None]) -> None:
        release()
        await gate.wait()

    lane.add(save)
    await asyncio.sleep(0)
    lane.halt()
    lane.add(turn)
    draining = asyncio.create_task(lane.drained())
    await asyncio.sleep(0)

    assert not draining.done()
    gate.set()
    await draining
    assert lane.waiting == 1


async def test_an_empty_lane_is_drained() -> None:
    lane = Lane()
    await lane.drained()
    lane.halt()
    await lane.drained()


async def test_a_turn_works_for_the_request_that_added_it_and_not_for_the_one_before_it() -> None:
    lane, seen = Lane(), []
    gate = asyncio.Event()

    async def turn(release: Callable[[], None]) -> None:
        seen.append(current_request_id())
        release()
        await gate.wait()

    for request_id in ("r-1", "r-2", None):
        with working_for(request_id):
            lane.add(turn)
    gate.set()
    await lane.drained()

    assert seen == ["r-1", "r-2", None]
