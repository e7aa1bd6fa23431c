from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chockstone.catalog import Catalog
from chockstone.checkpoints import open_store
from chockstone.engine.doctor import background
from chockstone.engine.doctor.background import BackgroundExamination, ExaminationReport

NOW = datetime(2030, 1, 1, tzinfo=UTC)
Make = Callable[..., BackgroundExamination]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    def build(**changes: object) -> BackgroundExamination:
        return BackgroundExamination(
            open_store(tmp_path / "archives"), catalog, journals=tmp_path / "journals", now=lambda: NOW, **changes
        )  # type: ignore[arg-type]  # any of its options

    async with await Catalog.open(f"sqlite:///{tmp_path}/catalog.sqlite3") as catalog:
        yield build


async def ended(examination: BackgroundExamination) -> ExaminationReport:
    while (report := examination.report()).is_running:
        await asyncio.sleep(0.001)
    return report


async def test_the_first_look_starts_an_examination_and_returns_at_once(make: Make, tmp_path: Path) -> None:
    (tmp_path / "archives" / "left").mkdir(parents=True)
    examination = make()

    first = examination.report()
    last = await ended(examination)

    assert (first.is_running, first.examination) == (True, None)
    assert last.examination is not None and last.failure is None
    assert [each.kind.value for each in last.examination.findings] == ["empty_directory"]
    assert last.examined_at == NOW and last.seconds is not None and last.seconds > 0


async def test_a_result_is_kept_for_an_hour_or_until_a_person_asks(make: Make) -> None:
    clock = [1000.0]
    examination = make(monotonic=lambda: clock[0])
    await ended(examination)

    assert not examination.report().is_running
    assert not examination.report(refresh=True).is_running, "the last one was seconds ago"
    clock[0] += 11
    assert not examination.report().is_running
    again = examination.report(refresh=True)
    assert again.is_running and again.examination is not None, "the earlier findings stay meanwhile"
    await ended(examination)
    clock[0] += 3601
    assert examination.report().is_running
    await ended(examination)


async def test_one_examination_runs_at_a_time_and_ends_with_the_server(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    async def hang(*_: object, **__: object) -> None:
        begun.append(1)
        await asyncio.Event().wait()

    monkeypatch.setattr(background, "examine", hang)
    examination = make()
    keeping = asyncio.create_task(examination.keep())
    for _ in range(10):
        assert examination.report(refresh=True).is_running
    while not begun:
        await asyncio.sleep(0.001)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)

    assert (await ended(examination)).failure == "the server is shutting down"
    assert begun == [1]
    assert not examination.report(refresh=True).is_running


async def test_an_examination_that_takes_too_long_or_fails_says_so(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async def fail(*_: object, **__: object) -> None:
        raise OSError("the disk fails")

    monkeypatch.setattr(background, "examine", hang)
    assert "longer than 0.01 seconds" in str((await ended(make(limit_seconds=0.01))).failure)
    monkeypatch.setattr(background, "examine", fail)
    assert (await ended(make())).failure == "the disk fails"
