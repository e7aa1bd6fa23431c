"""How many threads a worker gets: by the setting, the environment, the cores and what cgroups allow."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from chockstone.backends.supervision.thread_choice import (
    choose_threads,
    choose_threads_here,
    count_cores,
    read_limit,
    report_threads,
    usable_cores,
)


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    directory = tmp_path / "cgroup"
    directory.mkdir()
    return directory


def own(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "own"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_setting_is_taken_as_it_is() -> None:
    choice = choose_threads(5, {"OMP_NUM_THREADS": "3"}, cores=2, limit_cores=1.0)

    assert (choice.threads, choice.reason, choice.must_be_set) == (5, "the setting", True)


def test_auto_is_a_thread_for_each_core_which_torch_takes_by_itself() -> None:
    choice = choose_threads(0, {}, cores=8, limit_cores=None)

    assert (choice.threads, choice.must_be_set) == (8, False)
    assert choice.reason == "a thread for each core (8)"


@pytest.mark.parametrize(
    ("limit", "threads"), [(0.2, 1), (1.0, 1), (1.4, 1), (1.5, 2), (2.1, 2), (7.9, 8), (8.0, 8), (64.0, 8)]
)
def test_a_limit_of_the_cgroup_is_rounded_to_whole_threads(limit: float, threads: int) -> None:
    choice = choose_threads(0, {}, cores=8, limit_cores=limit)

    assert choice.threads == threads
    assert choice.must_be_set == (threads < 8)
    assert ("cgroup" in choice.reason) == (limit < 8)


def test_the_environment_comes_before_the_limit() -> None:
    choice = choose_threads(0, {"OMP_NUM_THREADS": "6,2"}, cores=8, limit_cores=2.0)

    assert (choice.threads, choice.reason, choice.must_be_set) == (6, "OMP_NUM_THREADS in the environment", False)
    assert choose_threads(0, {"OMP_NUM_THREADS": "many"}, cores=8, limit_cores=2.0).threads == 2


@pytest.mark.parametrize(("cores", "limit", "threads"), [(8, None, 2), (9, None, 2), (2, None, 1), (64, 8.0, 2)])
def test_replicas_share_the_cores(cores: int, limit: float | None, threads: int) -> None:
    choice = choose_threads(0, {"OMP_NUM_THREADS": "6"}, cores=cores, limit_cores=limit, replicas=4)

    assert (choice.threads, choice.must_be_set) == (threads, True)
    assert choice.reason.endswith("shared by 4 replicas")


def test_a_limit_of_version_2_is_the_smallest_of_the_cgroup_and_those_above(tmp_path: Path, mounted: Path) -> None:
    inner = mounted / "outer" / "inner"
    inner.mkdir(parents=True)
    (mounted / "outer" / "cpu.max").write_text("150000 100000\n")
    (inner / "cpu.max").write_text("400000 100000\n")

    assert read_limit(own(tmp_path, "0::/outer/inner"), mounted) == 1.5

    (mounted / "outer" / "cpu.max").write_text("max 100000\n")
    assert read_limit(own(tmp_path, "0::/outer/inner"), mounted) == 4.0


def test_a_container_finds_its_limit_at_the_top(tmp_path: Path, mounted: Path) -> None:
    (mounted / "cpu.max").write_text("50000 100000\n")

    assert read_limit(own(tmp_path, "0::/"), mounted) == 0.5
    assert read_limit(own(tmp_path, "0::/../../elsewhere"), mounted) == 0.5


def test_a_limit_of_version_1_is_found_beside_controllers_without_one(tmp_path: Path, mounted: Path) -> None:
    directory = mounted / "cpu,cpuacct"
    directory.mkdir()
    (directory / "cpu.cfs_quota_us").write_text("300000\n")
    (directory / "cpu.cfs_period_us").write_text("100000\n")
    lines = own(tmp_path, "4:memory:/docker/abc", "3:cpu,cpuacct:/docker/abc", "2:cpuset:/")

    assert read_limit(lines, mounted) == 3.0

    (directory / "cpu.cfs_quota_us").write_text("-1\n")
    assert read_limit(lines, mounted) is None


@pytest.mark.parametrize("text", ["", "max\n", "a b\n", "0 0\n", "100000 0\n"])
def test_what_is_no_limit_is_none(tmp_path: Path, mounted: Path, text: str) -> None:
    (mounted / "cpu.max").write_text(text)

    assert read_limit(own(tmp_path, "0::/"), mounted) is None
    assert read_limit(tmp_path / "missing", mounted) is None


def test_two_cpus_of_one_core_are_one_core(tmp_path: Path) -> None:
    for cpu in os.sched_getaffinity(0):
        facts = tmp_path / f"cpu{cpu}" / "topology"
        facts.mkdir(parents=True)
        (facts / "physical_package_id").write_text("0\n")
        (facts / "core_id").write_text("7\n")

    assert count_cores(tmp_path) == 1
    assert count_cores(tmp_path / "missing") == len(os.sched_getaffinity(0))


def test_this_machine_has_cores() -> None:
    assert 1 <= usable_cores() <= count_cores() <= len(os.sched_getaffinity(0))
    assert choose_threads_here(3).threads == 3


def test_the_log_says_what_was_chosen_and_why(caplog: pytest.LogCaptureFixture) -> None:
    choice = choose_threads(0, {}, cores=64, limit_cores=2.0)

    with caplog.at_level(logging.INFO):
        report_threads(2, choice)
        report_threads(4, choice)

    assert [record.getMessage() for record in caplog.records] == [
        "threads chosen threads=2 reason=the CPU limit of the cgroup (2 of 64 cores)",
        "threads chosen threads=4 reason=the default of torch",
    ]
