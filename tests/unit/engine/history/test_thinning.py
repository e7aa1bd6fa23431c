from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.engine.history.points import HistoryPoint
from chockstone.engine.history.thinning import EXACT_POINTS, MAX_POINTS, downsample, is_thinning_due, thin


def make(position: int, source: Any = "server", **values: float) -> HistoryPoint:
    values = values or {"loss": float(position % 97)}
    return HistoryPoint(position, position, float(position), position, source, values)


def recorded(count: int, *, passes_per_step: int = 1) -> list[HistoryPoint]:
    """A run that is thinned whenever it has too many points."""
    kept: list[HistoryPoint] = []
    for position in range(1, count + 1):
        is_step = position % (passes_per_step + 1) == 0
        kept.append(make(position, grad_norm=1.0) if is_step else make(position, loss=math.sin(position / 500)))
        if is_thinning_due(len(kept)):
            kept = thin(kept)
    return kept


def test_a_short_history_stays_as_it_is() -> None:
    points = [make(position) for position in range(1, MAX_POINTS + 1)]

    assert thin(points) == points


@pytest.mark.parametrize("count", [MAX_POINTS + 1, 10_000, 50_000])
def test_a_long_history_keeps_bounds_ends_and_extremes(count: int) -> None:
    kept = recorded(count, passes_per_step=3)

    assert len(kept) <= MAX_POINTS
    assert kept[0] == make(1, loss=math.sin(1 / 500))
    newest = kept[-EXACT_POINTS:]
    assert [point.position for point in newest] == list(range(count - EXACT_POINTS + 1, count + 1))
    assert {point.count for point in newest} == {1}
    assert sum(point.count for point in kept) == count
    positions = [point.position for point in kept]
    assert positions == sorted(set(positions))
    losses = [math.sin(position / 500) for position in range(1, count + 1) if position % 4]
    lowest = min(point.values.get("loss:min", point.values.get("loss", 9.0)) for point in kept)
    highest = max(point.values.get("loss:max", point.values.get("loss", -9.0)) for point in kept)
    assert (lowest, highest) == (min(losses), max(losses))


def test_the_mean_of_all_points_is_that_of_the_run() -> None:
    kept = recorded(20_000, passes_per_step=2)

    counted = [(point.values["loss"], point.count_of("loss")) for point in kept if "loss" in point.values]
    losses = [math.sin(position / 500) for position in range(1, 20_001) if position % 3]
    assert sum(count for _, count in counted) == len(losses)
    assert sum(value * count for value, count in counted) == pytest.approx(sum(losses), abs=1e-6)


def test_older_points_stand_for_equal_parts_of_the_run() -> None:
    kept = recorded(50_000)

    merged = [point.count for point in kept if point.count > 1]
    assert set(merged[:-1]) == {64}, "the beginning has the same resolution as the middle"
    assert kept[len(merged)].position == sum(merged) + 1, "they are the oldest ones"


def test_each_source_has_its_own_bound() -> None:
    server = [make(position) for position in range(1, 2 * MAX_POINTS, 2)]
    client = [make(position, "client") for position in range(2, 101, 2)]

    kept = thin(sorted([*server, make(9001), *client], key=lambda point: point.position))

    assert [point for point in kept if point.source == "client"] == client
    assert len([point for point in kept if point.source == "server"]) < MAX_POINTS


@given(st.integers(1, 400), st.integers(2, 100), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_a_chart_gets_at_most_as_many_points_as_it_asks_for(count: int, most: int, every: int) -> None:
    points = [make(position, "client" if every and position % every == 0 else "server") for position in range(1, count)]

    kept = downsample(points, most)

    assert len(kept) <= most
    assert [point.position for point in kept] == sorted({point.position for point in kept})
    if len(points) <= most:
        assert kept == points
    elif not every:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
