from __future__ import annotations

from datetime import UTC, datetime

import pytest

from chockstone.console import formatting


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(None, "–"), (0, "0 B"), (999.4, "999 B"), (1536, "1.5 kB"), (150_000_000, "150.0 MB"), (3e12, "3.0 TB")],
)
def test_sizes(size_bytes: float | None, text: str) -> None:
    assert formatting.size(size_bytes) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "–"), (0, "0"), (12_345, "12,345"), (12_345_678, "12.3M"), (float("nan"), "–"), (2.5e9, "2.5G")],
)
def test_counts(number: float | None, text: str) -> None:
    assert formatting.count(number) == text


@pytest.mark.parametrize(("number", "text"), [(0.25, "0.25"), (12, "12"), (999.7, "1k"), (1234, "1.23k")])
def test_short_counts(number: float, text: str) -> None:
    assert formatting.short_count(number) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0"), (2.34567, "2.346"), (1.2e-7, "1.20e-07"), (12_345.6, "12,346"), (float("inf"), "inf")],
)
def test_metrics(value: float | None, text: str) -> None:
    assert formatting.metric(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12 ms"),
        (0.00023, "0.23 ms"),
        (12.44, "12.4 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (90_000, "1 d 1 h"),
        (60, "1 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert formatting.duration(seconds) == text


def test_a_moment_has_its_exact_time_for_people_and_scripts() -> None:
    markup = formatting.moment(datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC))

    assert 'datetime="2026-03-01T12:00:05+00:00"' in markup
    assert 'title="2026-03-01 12:00:05 UTC"' in markup
    assert formatting.moment(1_772_366_405.0) == markup
    assert formatting.moment(None) == "–"


def test_the_id_of_a_run_is_short_and_still_says_which() -> None:
    assert formatting.short_run("3f2a9c1b-0000-4000-8000-000000000000:train:12") == "3f2a9c1b:12"
    assert formatting.short_run("x" * 100) == "x" * 24
    assert formatting.percent(0.256) == "26 %"
