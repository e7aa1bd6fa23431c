"""How OpenMP's threads wait: the rule by itself, and its effect on the real library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from chockstone.backends.worker.spinning import VARIABLES, Rule, ThreadTimes, describe_waiting

ALONE = [ThreadTimes(ran=0.1, waited=0.0), ThreadTimes(ran=0.1, waited=0.002)]
SHARED = [ThreadTimes(ran=0.1, waited=0.0), ThreadTimes(ran=0.05, waited=0.05)]
IDLE = [ThreadTimes(ran=0.0, waited=0.0)]
INTERVAL = 0.1
LONG = 17  # intervals in which a neighbour is noticed
LEFT = 0.8  # seconds until the average says that a neighbour has left
# Two threads on one core are in each other's way, whatever else the machine does.
PREAMBLE = """
import json, os, threading, time, torch
from chockstone.backends.worker import spinning
torch.set_num_threads(2)
numbers = torch.arange(1 << 17, dtype=torch.float32)
def compute():
    return (numbers * 1.5).sum().item()
first = compute()
cpu = min(os.sched_getaffinity(0))
for number in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(number), {cpu})
"""
WATCHED = """
deadline = time.monotonic() + 100
def slept():
    return any(thread.name == "idle-team" for thread in threading.enumerate())
with spinning.spinning_only_where_alone(int(os.environ["THREADS"])):
    is_watched = any(thread.name == "spinning" for thread in threading.enumerate())
    while is_watched and not slept() and time.monotonic() < deadline:
        assert compute() == first
    told = {"watched": is_watched, "slept": slept(), "same": compute() == first}
told["ended"] = not {thread.name for thread in threading.enumerate()} & {"idle-team", "spinning"}
print(json.dumps(told))
"""
COSTS = """
def cost():
    began = time.process_time()
    for _ in range(20):
        compute()
    return time.process_time() - began
spinning_cost = cost()
team = spinning._IdleTeam(spinning.Gomp(spinning._find_library()), 1 + os.cpu_count())
cost()
sleeping_cost = cost()
team.end()
cost()
print(json.dumps([spinning_cost, sleeping_cost, cost()]))
"""
two_cores = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two cores"
)


def tell(program: str, **environ: str) -> Any:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, "-c", PREAMBLE + program]
    ran = subprocess.run(command, env=clean | environ, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def fare(rule: Rule, changes: list[ThreadTimes], intervals: int) -> list[bool]:
    return [rule.decide(changes, INTERVAL) for _ in range(intervals)]


def test_threads_that_have_their_cores_to_themselves_spin() -> None:
    assert not any(fare(Rule(), ALONE, 100))


def test_one_thread_that_waits_for_a_core_for_little_more_than_a_second_is_enough_to_sleep() -> None:
    fared = fare(Rule(), SHARED, LONG + 3)

    assert LONG // 2 <= fared.index(True) <= LONG and all(fared[LONG:])


def test_the_client_and_the_api_are_no_neighbours() -> None:
    beside_them = [ThreadTimes(ran=0.07, waited=0.03)]

    assert not any(fare(Rule(), beside_them, 100))


def test_a_client_that_takes_a_core_for_a_moment_is_no_neighbour() -> None:
    rule = Rule()

    fared = [fare(rule, SHARED, 2) + fare(rule, ALONE, 3) for _ in range(100)]

    assert not any(any(each) for each in fared)


def test_they_spin_again_after_a_second_of_work_with_nobody_in_the_way() -> None:
    rule = Rule()
    fare(rule, SHARED, LONG)

    fared = fare(rule, ALONE, 25)

    assert 15 <= fared.index(False) <= 19 and not any(fared[19:])


def test_they_spin_again_although_the_client_and_the_api_use_the_cores_for_moments() -> None:
    rule = Rule()
    fare(rule, SHARED, LONG)

    with_client = [ThreadTimes(ran=0.06, waited=0.028)], [ThreadTimes(ran=0.06, waited=0.004)]
    fared = [rule.decide(with_client[number % 2], INTERVAL) for number in range(50)]

    assert 15 <= fared.index(False) <= 30 and not any(fared[30:])


def test_threads_that_sleep_early_beside_a_neighbour_go_on_sleeping() -> None:
    rule = Rule()
    fare(rule, SHARED, LONG)

    beside = [ThreadTimes(ran=0.05, waited=0.045)], [ThreadTimes(ran=0.05, waited=0.009)]
    fared = [rule.decide(beside[number % 2], INTERVAL) for number in range(1000)]

    assert all(fared)


def test_idle_threads_tell_nothing() -> None:
    rule = Rule()
    fare(rule, SHARED, LONG)

    assert all(fare(rule, IDLE, 1000))
    assert not any(fare(Rule(), IDLE, 10))


def test_a_neighbour_that_comes_and_goes_is_waited_for_longer_and_longer() -> None:
    rule = Rule()
    waits = []
    for _ in range(10):
        fare(rule, SHARED, LONG)
        waits.append(next(count for count in range(1, 1000) if not rule.decide(ALONE, INTERVAL)) * INTERVAL)

    assert waits[:4] == pytest.approx([LEFT + 1, LEFT + 2, LEFT + 4, LEFT + 8], abs=0.2)
    assert waits[-1] == pytest.approx(LEFT + 60, abs=0.2)
    fare(rule, ALONE, 100)  # ten seconds of peace
    fare(rule, SHARED, LONG)
    assert 15 <= fare(rule, ALONE, 25).index(False) <= 19


def test_no_threads_and_no_neighbours_are_no_reason_to_sleep() -> None:
    assert Rule().decide([], INTERVAL) is False


def test_who_decides_is_said() -> None:
    assert describe_waiting({}) == ("spin, or sleep while cores are shared", "default")
    assert describe_waiting({"GOMP_SPINCOUNT": "10"}) == ("GOMP_SPINCOUNT=10", "environment")


@two_cores
def test_an_idle_team_makes_the_librarys_threads_sleep_early_for_as_long_as_it_lasts() -> None:
    spinning, sleeping, again = tell(COSTS)

    assert spinning > 3 * sleeping, "this libgomp does not spin less while it has more threads than cores"
    assert again > 3 * sleeping


@two_cores
def test_threads_in_each_others_way_sleep_early_and_compute_the_same() -> None:
    assert tell(WATCHED, THREADS="2") == {"watched": True, "slept": True, "same": True, "ended": True}


@two_cores
@pytest.mark.parametrize(
    "environ",
    [{"THREADS": "1"}, *({"THREADS": "2", name: "PASSIVE" if "OMP_W" in name else "9"} for name in VARIABLES)],
)
def test_one_thread_and_users_who_decide_for_themselves_are_left_alone(environ: dict[str, str]) -> None:
    assert tell(WATCHED, **environ)["watched"] is False
