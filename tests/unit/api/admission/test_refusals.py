from __future__ import annotations

import asyncio
import logging

import pytest

from chockstone.api.admission.refusals import RefusedKey, RefusedKeys


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reported() -> list[RefusedKey]:
    return []


@pytest.fixture
def refused(clock: Clock, reported: list[RefusedKey]) -> RefusedKeys:
    return RefusedKeys(reported.append, monotonic=clock)


def test_the_first_refusal_is_reported_at_once_and_more_when_the_minute_ends(
    refused: RefusedKeys, reported: list[RefusedKey], clock: Clock
) -> None:
    for _ in range(100):
        refused.record("tml-guess", source="10.0.0.1")
    assert [each.count for each in reported] == [1]

    clock.seconds += 60
    refused.report_due()
    refused.record("tml-guess", source="10.0.0.1")

    assert [each.count for each in reported] == [1, 99]
    assert {(each.source, len(each.key_digest)) for each in reported} == {("10.0.0.1", 8)}


def test_one_that_stays_away_is_reported_at_once_when_it_comes_back(
    refused: RefusedKeys, reported: list[RefusedKey], clock: Clock
) -> None:
    for _ in range(2):
        refused.record("tml-guess", source="10.0.0.1")
        clock.seconds += 120
        refused.report_due()

    assert [each.count for each in reported] == [1, 1]


def test_many_keys_are_few_lines(refused: RefusedKeys, reported: list[RefusedKey], clock: Clock) -> None:
    for number in range(10_000):
        refused.record(f"tml-{number}", source=f"10.0.{number % 256}.1")
    clock.seconds += 60
    refused.report_due()

    assert len(reported) == 21
    assert sum(each.count for each in reported) == 10_000
    assert reported[-1].source == "(others)"


def test_neither_keys_nor_line_breaks_reach_the_log(refused: RefusedKeys, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    refused.record("tml-secret\udc80", source="1.2.3.4\nERROR all is lost" + "x" * 1000)

    assert "tml-secret" not in caplog.text
    assert caplog.text.count("\n") == 1
    assert len(caplog.text) < 300


async def test_what_was_counted_is_reported_also_if_nobody_comes_back(reported: list[RefusedKey]) -> None:
    refused = RefusedKeys(reported.append, interval_seconds=0.05)
    for _ in range(3):
        refused.record("tml-guess", source="10.0.0.1")

    reporting = asyncio.create_task(refused.keep_reporting())
    async with asyncio.timeout(60):
        while sum(each.count for each in reported) < 3:
            await asyncio.sleep(0.01)
    reporting.cancel()

    assert [each.count for each in reported] == [1, 2]
