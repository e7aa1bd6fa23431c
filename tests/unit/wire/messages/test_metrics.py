from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from chockstone.engine.history.points import MAX_STEP, MAX_TIME, is_name
from chockstone.engine.history.run_history import MAX_NAMES
from chockstone.wire.messages import metrics
from chockstone.wire.messages.metrics import PostMetricsRequest
from chockstone.wire.messages.schema import explain


def post(**point: Any) -> PostMetricsRequest:
    return PostMetricsRequest.model_validate({"points": [{"step": 1, "values": {"reward": 0.5}, **point}]})


def test_whole_numbers_are_numbers() -> None:
    [point] = post(values={"reward": 1}).points

    assert (point.values, point.at) == ({"reward": 1.0}, None)


@pytest.mark.parametrize("name", ["a", "a/b.c:d-e_f", "x" * 64, "", "x" * 65, "-a", ".a", "a b", "a\n", "ä"])
def test_the_message_and_the_history_accept_the_same_names(name: str) -> None:
    try:
        post(values={name: 1.0})
    except ValidationError:
        assert not is_name(name)
    else:
        assert is_name(name)


def test_the_message_and_the_history_have_the_same_bounds() -> None:
    assert metrics.MAX_SERIES == MAX_NAMES
    post(step=MAX_STEP, at=MAX_TIME)
    for point in ({"step": MAX_STEP + 1}, {"at": MAX_TIME + 1}, {"step": True}, {"values": {"a": True}}):
        with pytest.raises(ValidationError):
            post(**point)


def test_a_request_has_a_bounded_count_of_numbers() -> None:
    values = {f"s{index}": 0.5 for index in range(50)}
    most = metrics.MAX_POSTED_VALUES // len(values)

    assert len(PostMetricsRequest.model_validate({"points": [{"step": 1, "values": values}] * most}).points) == most
    for points in ([{"step": 1, "values": values}] * (most + 1), [{"step": 1, "values": dict.fromkeys(range(30_000))}]):
        with pytest.raises(ValidationError, match="send fewer points") as refused:
            PostMetricsRequest.model_validate({"points": points})
        assert refused.value.error_count() == 1  # and not one for each number


@pytest.mark.parametrize("points", [None, 1, "x", {"a": {}}, [None], [[1]], [{"step": 1, "values": [1]}], [{}]])
def test_what_is_no_list_of_points_is_refused(points: Any) -> None:
    with pytest.raises(ValidationError):
        PostMetricsRequest.model_validate({"points": points})


@pytest.mark.parametrize("name", ["a\0", "\ud800"])
def test_names_that_are_no_text_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        post(values={name: 1.0})


def test_a_refused_name_is_explained() -> None:
    with pytest.raises(ValidationError) as refused:
        post(values={"rew ard": 1.0})

    assert explain(refused.value.errors()) == (
        "a key of points[0].values must match pattern '^[A-Za-z0-9_][A-Za-z0-9_./:-]{0,63}$', not 'rew ard'."
    )
