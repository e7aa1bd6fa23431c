from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.engine import lanes
from chockstone.engine.lanes import Lane, LaneFull, Operation, Work
from chockstone.wire.failures import BadRequest


@dataclass(frozen=True)
class Arrival:
    """A request: its number, how long it waits on the way in, and how long it then runs, in turns of the loop."""

    seq_id: int
    late: int
    runs: int
    releases_after: int | None  # None: only when it ends


@dataclass
class Witness:
    """What happened in a lane, and the most that was ever at its head at once."""

    started: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    at_head: int = 0
    most_at_head: int = 0

    def work(self, request_id: str, arrival: Arrival) -> Work:
        async def work(release: Callable[[], None]) -> None:
            self.started.append(request_id)
            self.at_head += 1
            self.most_at_head = max(self.most_at_head, self.at_head)
            for turn in range(arrival.runs):
                if turn == arrival.releases_after:
                    self.at_head -= 1
                    release()
                    release()  # said twice, meant once
                await asyncio.sleep(0)
            if arrival.releases_after is None or arrival.releases_after >= arrival.runs:
                self.at_head -= 1
            self.ended.append(request_id)

        return work


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        seq_id=st.integers(0, 12),
        late=st.integers(0, 2),
        runs=st.integers(0, 4),
        releases_after=st.none() | st.integers(0, 4),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(ARRIVALS)
def test_each_number_runs_once_in_order_of_arrival_and_one_at_a_time(arrivals: list[Arrival]) -> None:
    """Whatever the order, the gaps, the repeats, and whoever lets the next one start early."""
    witness = Witness()
    first_ids: dict[int, str] = {}

    async def scenario() -> None:
        lane = Lane(limit=1000)
        for number, arrival in enumerate(arrivals):
            for _ in range(arrival.late):
                await asyncio.sleep(0)
            assert lane.find(arrival.seq_id) == first_ids.get(arrival.seq_id)
            if arrival.seq_id not in first_ids:
                request_id = first_ids[arrival.seq_id] = f"r{number}"
                lane.add(Operation(request_id, arrival.seq_id, witness.work(request_id, arrival)))
        await lane.drained()
        assert lane.waiting == 0

    asyncio.run(scenario())

    assert witness.started == list(first_ids.values())
    assert sorted(witness.ended) == sorted(witness.started)
    assert witness.most_at_head <= 1


async def nothing(release: Callable[[], None]) -> None:
    pass


def gated() -> tuple[asyncio.Event, Work]:
    gate = asyncio.Event()

    async def work(release: Callable[[], None]) -> None:
        await gate.wait()

    return gate, work


async def test_unnumbered_operations_all_run() -> None:
    lane = Lane(limit=10)
    ran: list[str] = []

    async def work(release: Callable[[], None]) -> None:
        ran.append("ran")

    for _ in range(3):
        assert lane.find(None) is None
        lane.add(Operation("r", None, work))
    await lane.drained()

    assert ran == ["ran"] * 3


async def test_a_full_lane_refuses_and_does_not_remember_what_it_refused() -> None:
    lane = Lane(limit=2)
    gate, work = gated()
    for seq_id in (1, 2, 3):  # one runs, two wait
        lane.add(Operation(f"r{seq_id}", seq_id, work))

    with pytest.raises(LaneFull):
        lane.add(Operation("r4", 4, work))

    assert lane.find(4) is None
    assert lane.waiting == 2
    gate.set()
    await lane.drained()
    lane.add(Operation("again", 4, nothing))
    assert lane.find(4) == "again"
    await lane.drained()


async def test_a_repeat_is_known_until_as_many_newer_ones_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "REMEMBERED", 3)
    lane = Lane(limit=100)

    for seq_id in (1, 2, 3, 4):
        lane.add(Operation(f"r{seq_id}", seq_id, nothing))

    assert [lane.find(seq_id) for seq_id in (2, 3, 4)] == ["r2", "r3", "r4"]
    with pytest.raises(BadRequest, match="seq_id 1 is too old: this run is at 4"):
        lane.find(1)
    await lane.drained()


async def test_a_number_that_was_forgotten_never_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a smaller one that never came: it cannot be told from one that did."""
    monkeypatch.setattr(lanes, "REMEMBERED", 2)
    lane = Lane(limit=100)

    for seq_id in (7, 8, 6, 9, 10):
        lane.add(Operation(f"r{seq_id}", seq_id, nothing))

    for seq_id in (0, 5, 6, 7, 8):
        with pytest.raises(BadRequest):
            lane.find(seq_id)
    assert lane.find(11) is None
    await lane.drained()


async def test_the_first_operation_may_have_number_0() -> None:
    assert Lane(limit=1).find(0) is None


async def test_a_lane_is_drained_only_when_what_was_released_early_has_ended() -> None:
    lane = Lane(limit=10)
    gate = asyncio.Event()
    released = asyncio.Event()

    async def save(release: Callable[[], None]) -> None:
        release()
        released.set()
        await gate.wait()

    lane.add(Operation("save", 1, save))
    lane.add(Operation("next", 2, nothing))
    draining = asyncio.create_task(lane.drained())
    await released.wait()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert not draining.done()
    gate.set()
    await draining


async def test_an_empty_lane_is_drained() -> None:
    await Lane(limit=1).drained()
