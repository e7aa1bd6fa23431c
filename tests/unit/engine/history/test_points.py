from __future__ import annotations

import math
from typing import Any

import orjson
import pytest

from chockstone.engine.history.points import HistoryPoint, Measurement, is_name, merge, plain_values


def point(position: int, *, count: int = 1, sequence: int | None = None, **values: float) -> HistoryPoint:
    source: Any = "server" if sequence is not None else "client"
    return HistoryPoint(position, sequence, float(position), position, source, values, count)


@pytest.mark.parametrize("name", ["loss", "loss:sum", "rl/reward.mean", "a-b", "9lives", "_x", "x" * 64])
def test_names_of_series(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "-x", "../x", "a,b", "=1+1", 'a"b', "ä", "a\n", "<b>", "a\0"])
def test_other_names_are_refused(name: str) -> None:
    assert not is_name(name)


def test_values_that_no_chart_can_show_are_left_out() -> None:
    found = plain_values({"a": 1, "b": math.nan, "c": math.inf, "d e": 2.0, "f": -0.5})

    assert found == {"a": 1.0, "f": -0.5}


def test_a_point_survives_its_file() -> None:
    exact = point(7, sequence=3, loss=0.5)
    merged = merge([exact, point(8, sequence=4, grad_norm=2.0), point(9, sequence=5, loss=1.5)])

    for each in (exact, merged, point(1, reward=1.0)):
        assert HistoryPoint.from_record(orjson.loads(orjson.dumps(each.to_record()))) == each


def test_clients_see_a_count_only_where_points_were_merged() -> None:
    assert point(7, sequence=3, loss=0.5).to_json() == {
        "position": 7,
        "at": 7.0,
        "step": 7,
        "source": "server",
        "sequence": 3,
        "values": {"loss": 0.5},
    }
    assert merge([point(1, reward=1.0), point(2, reward=2.0)]).to_json()["count"] == 2


def test_a_merged_value_is_the_mean_over_the_points_that_had_it() -> None:
    points = [
        point(1, loss=1.0, tokens=10.0),
        point(2, grad_norm=4.0),
        point(3, loss=2.0, tokens=20.0),
        point(4, loss=6.0, tokens=30.0),
        point(5, grad_norm=8.0),
    ]

    merged = merge(points)
    pairs = merge([merge(points[:2]), merge([merge(points[2:4]), points[4]])])

    assert (pairs.values, pairs.counts) == (pytest.approx(merged.values), merged.counts)
    assert merged.values == {"loss": 3.0, "tokens": 20.0, "grad_norm": 6.0, "loss:min": 1.0, "loss:max": 6.0}
    assert (merged.count, merged.counts) == (5, {"loss": 3, "tokens": 3, "grad_norm": 2})
    assert (merged.position, merged.at, merged.step) == (5, 5.0, 5)


def test_merging_the_largest_numbers_stays_finite() -> None:
    merged = merge([point(1, loss=1.7e308, count=2**40), point(2, loss=-1.7e308, count=3)])

    assert all(math.isfinite(value) for value in merged.values.values())


def test_chosen_series_of_a_point() -> None:
    merged = merge([point(1, loss=1.0, tokens=3.0), point(2, loss=2.0)])

    assert merged.only(frozenset({"reward"})) is None
    tokens = merged.only(frozenset({"tokens", "reward"}))
    assert tokens is not None and tokens.values == {"tokens": 3.0} and tokens.counts == {"tokens": 1}
    loss = merged.only(frozenset({"loss"}))
    assert loss is not None and loss.values == {"loss": 1.5, "loss:min": 1.0, "loss:max": 2.0}


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {},
        {"at": 1.0, "step": 1},
        {"at": "1", "step": 1, "values": {}},
        {"at": math.nan, "step": 1, "values": {}},
        {"at": -1.0, "step": 1, "values": {}},
        {"at": 1.0, "step": True, "values": {}},
        {"at": 1.0, "step": -1, "values": {}},
        {"at": 1.0, "step": 1.5, "values": {}},
        {"at": 1.0, "step": 1, "values": {"a": None}},
        {"at": 1.0, "step": 1, "values": {"a": math.inf}},
        {"at": 1.0, "step": 1, "values": {"a b": 1.0}},
    ],
)
def test_a_damaged_measurement_is_refused(found: Any) -> None:
    with pytest.raises(ValueError, match="it"):
        Measurement.from_json(found)


@pytest.mark.parametrize(
    "change",
    [
        {"position": 0},
        {"position": "1"},
        {"position": None},
        {"sequence": -1},
        {"source": "other"},
        {"count": 0},
        {"counts": []},
        {"counts": {"a": 0}},
        {"values": None},
    ],
)
def test_a_damaged_point_is_refused(change: dict[str, Any]) -> None:
    good = {"position": 1, "sequence": 1, "at": 1.0, "step": 1, "source": "server", "values": {"a": 1.0}}
    HistoryPoint.from_record(good)

    with pytest.raises(ValueError, match="it"):
        HistoryPoint.from_record(good | change)
