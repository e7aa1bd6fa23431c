from __future__ import annotations

from datetime import UTC, datetime

import pytest

from chockstone.cli.output.formatting import (
    format_count,
    format_duration,
    format_states,
    parse_best,
    parse_duration,
    parse_size,
    plain,
    printable,
    shorten,
    write_duration,
    write_size,
)


@pytest.mark.parametrize("text", ["90s", "15m", "12h", "7d", "36h", "0.5s"])
def test_a_duration_is_written_as_it_is_read(text: str) -> None:
    assert write_duration(parse_duration(text)) == text


@pytest.mark.parametrize("text", ["1", "500MB", "50GiB", "16MiB", "1234567"])
def test_a_size_is_written_as_it_is_read(text: str) -> None:
    assert write_size(parse_size(text)) == text


@pytest.mark.parametrize("text", ["", "7", "0s", "-1s", "1 day", "1y"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "-1", "1iB", "five", "1 apple"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_durations_for_people_have_one_unit() -> None:
    assert [format_duration(seconds) for seconds in (-1, 119, 120, 7200, 172_800)] == [
        "0 s",
        "119 s",
        "2 min",
        "2 h",
        "2 days",
    ]


def test_states_are_counted_and_the_good_ones_come_first() -> None:
    assert format_states(["damaged", "good", "missing", "good"]) == "2 ok, 1 damaged, 1 missing"
    assert format_states(["good"]) == "1 ok, 0 damaged"


def test_counts_have_their_plural() -> None:
    assert (format_count(1, "step"), format_count(2000, "step")) == ("1 step", "2,000 steps")


def test_the_best_is_the_least_unless_it_is_said_otherwise() -> None:
    assert (parse_best("loss"), parse_best("accuracy:max:3")) == (("loss", "min", 1), ("accuracy", "max", 3))


def test_text_cannot_move_the_cursor_and_is_cut_to_its_width() -> None:
    assert printable("a\x1b[31m\u202e") == "a\\x1b[31m\\u202e"
    assert (shorten("abc", 3), shorten("abcd", 3)) == ("abc", "ab…")


def test_json_is_strict() -> None:
    document = plain({1: (float("nan"), float("inf")), "at": datetime(2026, 1, 2, tzinfo=UTC)})

    assert document == {"1": ["nan", "inf"], "at": "2026-01-02T00:00:00+00:00"}
