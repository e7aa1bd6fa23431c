"""Kill anything at any moment: a script that trains through the SDK never notices, and its bits are the same."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from faults.crashes import OFTEN, Client, Heard, Killer, RestartedServer, assert_same, until
from faults.doubling_proxy import DoublingProxy
from sdk.recoveries import recoveries
from support.live import LiveServer, is_alive

Undisturbed = Callable[..., Heard]
Serve = Callable[..., RestartedServer]
POINTS = Path(__file__).parents[1] / "faults" / "crash_points"
TRAINING = ("sft:10", "crowd:6")
SAMPLING = ("rl:7",)
SWEEPS = {
    TRAINING: ["worker", "both", "server twice", "worker in recovery", "stopped", "server", "server in recovery"],
    SAMPLING: ["server", "worker twice", "server in recovery", "stopped and killed", "worker", "worker in recovery"],
}
# In the suite, those between processes; what a single process does between two durable steps is swept by
# faults/test_crash_steps.py.
BOUNDARIES = [  # the engine alone meets each of them in faults/test_crash_steps.py
    "acknowledge before 2",
    "reply before 3",
    "commit after 1",
]
OTHER_BOUNDARIES = [
    "write torn 4",
    "store after 2",
    "trim before 1",
    "append after 3",
    "acknowledge after 3",
    "compute before 2",
    "deliver before 2",
    "append before 2",
    "write before 3",
    "write after 2",
    "compute after 2",
    "reply after 2",
    "store before 2",
    "deliver after 2",
    "commit before 1",
    "trim after 1",
    "catalog before 3",
    "catalog after 2",
]


@pytest.fixture(scope="module")
def undisturbed(live: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """What scripts hear of a server that nobody disturbs."""
    home = tmp_path_factory.mktemp("undisturbed")
    heard: dict[tuple[str, ...], Heard] = {}

    def run(*scripts: str) -> Heard:
        if scripts not in heard:
            heard[scripts] = Client(live, home / "notes", *scripts).result(with_usage=True)
        return heard[scripts]

    return run


@pytest.fixture
def serve(models: dict[str, Path], tmp_path: Path) -> Iterator[Serve]:
    """Starts a server that is started again whenever it dies."""
    with ExitStack() as stack:

        def start(*flags: str, **env: str) -> RestartedServer:
            return stack.enter_context(RestartedServer(models, tmp_path / "server", *flags, env=env))

        yield start


def sweep(server: RestartedServer, expected: Heard, home: Path, *, plan: list[str], seed: int) -> int:
    """Run the same scripts and disturb them; how often something was killed."""
    client = Client(server, home, *expected.notes)
    killer = Killer(server, random.Random(seed))

    killer.disturb(client, plan=plan, total=expected.count)
    heard = client.result(with_usage=True)

    assert_same(heard, expected)
    assert heard.used == expected.used  # each use is billed once
    assert set(server.deaths) <= {-9}, f"the server ended by itself: {server.deaths}\n{server.log()[-20_000:]}"
    receipts = recoveries(server, heard)
    assert sum(receipt["mismatched"] for receipt in receipts) == 0, receipts
    longest = max((receipt["seconds"] for receipt in receipts), default=0.0)
    print(
        f"{killer.kills} kills, {len(receipts)} recoveries of runs, the longest {longest:.2f} s; "
        f"the scripts waited {heard.longest_wait:.1f} s at most"
    )
    return killer.kills


def test_a_few_kills_change_no_bit(serve: Serve, undisturbed: Undisturbed, tmp_path: Path) -> None:
    kills = sweep(serve(*OFTEN), undisturbed(*TRAINING), tmp_path, plan=["both", "server in recovery"], seed=1)

    assert kills == 4


def test_a_spare_worker_takes_over_without_a_changed_bit_and_ends_with_its_server(
    serve: Serve, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    expected = undisturbed(*TRAINING)
    server = serve(*OFTEN, "--spare-worker=1s")
    [worker] = server.workers()
    until(lambda: len(server.workers()) == 2, "a spare waits")
    [spare] = set(server.workers()) - {worker}
    client = Client(server, tmp_path, *TRAINING)
    client.wait_for(expected.count // 2)

    os.kill(worker, signal.SIGKILL)
    heard = client.result(with_usage=True)

    assert_same(heard, expected)
    assert heard.used == expected.used
    assert sum(receipt["mismatched"] for receipt in recoveries(server, heard)) == 0
    assert f"spare worker promoted pid={spare}" in server.log()
    until(lambda: spare in server.workers() and len(server.workers()) == 2, "another spare waits")
    family = server.workers()
    server.hold()
    server.kill_server()
    until(lambda: not any(map(is_alive, family)), "worker and spare have ended with their server")
    until(lambda: not server.is_running(), "the server has ended")


@pytest.mark.soak
@pytest.mark.parametrize("scripts", SWEEPS, ids=("training", "sampling"))
def test_ten_kills_change_no_bit(
    serve: Serve, undisturbed: Undisturbed, tmp_path: Path, scripts: tuple[str, ...]
) -> None:
    plan = SWEEPS[scripts]

    kills = sweep(serve(*OFTEN), undisturbed(*scripts), tmp_path, plan=plan, seed=1)

    assert kills == 10


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8))
def test_forty_kills_of_three_hundred_change_no_bit(
    serve: Serve, undisturbed: Undisturbed, tmp_path: Path, seed: int
) -> None:
    plan = sorted({word for words in SWEEPS.values() for word in words}) * 3
    random.Random(seed).shuffle(plan)
    scripts = [("sft:30", "crowd:20", "rl:15"), ("rl:20",), ("sft:40", "crowd:30")][seed % 3]
    flags = [(), OFTEN, ("--recovery-steps=1",), ("--journal=synced", *OFTEN)][seed % 4]

    kills = sweep(serve(*flags), undisturbed(*scripts), tmp_path, plan=plan, seed=seed)

    assert kills == 39


def meet(boundaries: list[str], serve: Serve, expected: Heard, home: Path) -> None:
    """Die at each of them, one after another, while the scripts run."""
    (home / "plan").write_text("\n".join(boundaries))
    server = serve("--recovery-steps=1", CRASH_PLAN=str(home), PYTHONPATH=str(POINTS))

    heard = Client(server, home / "notes", *expected.notes).result(with_usage=True)

    hits = len((home / "hits").read_text().splitlines())
    assert hits == len(boundaries), f"never met: {boundaries[hits]}"
    assert_same(heard, expected)
    assert heard.used == expected.used
    assert set(server.deaths) <= {-9}


@pytest.mark.soak
def test_killed_at_boundaries_between_processes(serve: Serve, undisturbed: Undisturbed, tmp_path: Path) -> None:
    meet(BOUNDARIES, serve, undisturbed("sft:10"), tmp_path)


@pytest.mark.soak
def test_killed_at_every_other_boundary(serve: Serve, undisturbed: Undisturbed, tmp_path: Path) -> None:
    meet(OTHER_BOUNDARIES, serve, undisturbed("sft:10"), tmp_path)


@pytest.mark.soak
def test_what_is_delivered_twice_is_done_once(serve: Serve, undisturbed: Undisturbed, tmp_path: Path) -> None:
    """By two clients, while the worker and then the server die."""
    training, sampling = undisturbed("sft:10"), undisturbed(*SAMPLING)
    server = serve(*OFTEN)

    with DoublingProxy(server.url, seed=1) as proxy:
        first = Client(server, tmp_path / "first", "sft:10", url=proxy.url)
        second = Client(server, tmp_path / "second", *SAMPLING, url=proxy.url)
        Killer(server, random.Random(1)).disturb(first, plan=["worker", "both"], total=training.count)

        assert_same(heard := first.result(with_usage=True), training)
        assert_same(sampled := second.result(with_usage=True), sampling)
        assert (heard.used, sampled.used) == (training.used, sampling.used)
        assert proxy.requests > 100
