from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from chockstone.api.status.disk_space import DiskForecast, DiskSpace, existing

HOUR = 3600.0
DAY = 24 * HOUR


class Disk:
    """A file system whose free space and clock a test sets."""

    def __init__(self) -> None:
        self.now = 1e9
        self.free = {"a": 1000}

    def statvfs(self, place: Path) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=self.free[Path(place).name], f_frsize=1, f_blocks=5000)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(os, "statvfs", made.statvfs)
    return made


@pytest.fixture
def space(tmp_path: Path, disk: Disk) -> Callable[[], DiskSpace]:
    (tmp_path / "a").mkdir()

    def make(*names: str) -> DiskSpace:
        places = [tmp_path / name for name in names or ("a",)]
        return DiskSpace(places, record=tmp_path / "record.json", reserve_bytes=100, now=lambda: disk.now)

    return make


async def test_the_forecast_follows_the_free_space_of_the_last_day(disk: Disk, space: Callable[[], DiskSpace]) -> None:
    measured = space()
    measured.measure()
    disk.now += DAY / 2
    disk.free["a"] = 900

    found = await measured.look()

    assert (found.free_bytes, found.total_bytes, found.used_bytes) == (900, 5000, 4100)
    assert measured.forecast(found) == DiskForecast(200.0, 4.0), "800 bytes above the reserve, 200 a day"


async def test_less_than_an_hour_gives_no_forecast(disk: Disk, space: Callable[[], DiskSpace]) -> None:
    measured = space()
    assert measured.forecast(await measured.look()) == DiskForecast()
    measured.measure()
    disk.now += HOUR - 1
    disk.free["a"] = 500

    assert measured.forecast(await measured.look()) == DiskForecast()


async def test_a_disk_that_does_not_fill_is_never_full(disk: Disk, space: Callable[[], DiskSpace]) -> None:
    measured = space()
    measured.measure()
    disk.now += DAY / 2
    disk.free["a"] = 1500

    assert measured.forecast(await measured.look()) == DiskForecast(-1000.0, None)


async def test_measurements_outlive_the_server_and_old_ones_are_dropped(
    disk: Disk, space: Callable[[], DiskSpace], tmp_path: Path
) -> None:
    space().measure()
    disk.now += 2 * DAY
    second = space()
    second.read_record()
    disk.free["a"] = 800
    second.measure()
    disk.now += DAY / 4
    disk.free["a"] = 700

    third = space()
    third.read_record()

    assert third.forecast(await third.look()) == DiskForecast(400.0, 1.5)
    assert not (tmp_path / "record.new").exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[[1]]", b'[["a", 2, "b"]]', b"5"])
def test_a_damaged_record_costs_the_forecast_alone(
    space: Callable[[], DiskSpace], tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "record.json").write_bytes(content)

    measured = space()
    measured.read_record()

    assert measured._measured == []


async def test_the_fuller_of_two_disks_counts(disk: Disk, space: Callable[..., DiskSpace], tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    disk.free["b"] = 10

    assert (await space("a", "b").look()).free_bytes == 10


def test_a_directory_that_is_not_made_yet_is_on_the_disk_of_its_parent(tmp_path: Path) -> None:
    assert existing(tmp_path / "x" / "y") == tmp_path
    assert existing(tmp_path) == tmp_path
