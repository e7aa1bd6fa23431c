from __future__ import annotations

import asyncio

import pytest

from chockstone.catalog import CatalogAway
from chockstone.catalog.database import retry
from chockstone.catalog.database.retry import CatalogRetry, context_that_waits_for_catalog, waiting_for_catalog

AWAY = CatalogAway("the database is restarting")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each retry slept; a test waits for none of them."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(retry.asyncio, "sleep", sleep)
    return slept


async def test_the_first_retry_is_immediate_and_pauses_double_up_to_a_second(pauses: list[float]) -> None:
    attempt = CatalogRetry()

    for _ in range(8):
        await attempt.wait(AWAY)

    assert pauses == [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


async def test_a_call_fails_when_its_seconds_are_over(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_RETRY_SECONDS", -1.0)

    with pytest.raises(CatalogAway, match="restarting"):
        await CatalogRetry().wait(AWAY)
    assert pauses == []


async def test_a_commit_whose_answer_was_lost_is_not_repeated_by_itself(pauses: list[float]) -> None:
    with pytest.raises(CatalogAway):
        await CatalogRetry().wait(CatalogAway("cut", may_be_done=True))


async def test_work_that_waits_repeats_a_lost_commit_until_it_is_over(pauses: list[float]) -> None:
    reasons: list[str | None] = []
    over = False
    with waiting_for_catalog(is_over=lambda: over, on_wait=reasons.append):
        attempt = CatalogRetry()
        for _ in range(7):
            await attempt.wait(CatalogAway("cut", may_be_done=True))
        over = True
        with pytest.raises(CatalogAway):
            await attempt.wait(AWAY)
        attempt.end()

    assert reasons == ["cut", None]  # reported once the pauses are long, and at the end


async def test_a_task_can_wait_as_a_whole(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_RETRY_SECONDS", -1.0)

    async def work() -> None:
        await CatalogRetry().wait(AWAY)

    await asyncio.create_task(work(), context=context_that_waits_for_catalog(is_over=lambda: False))

    assert pauses == [0.0]
