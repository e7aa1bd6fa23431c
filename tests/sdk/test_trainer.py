"""Trainers through the real SDK and a real server: killed at any moment, they train on the same samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.trainer_life import Nursery, ledger, live_with_kills
from support.live import LiveServer

SETTINGS: dict[str, Any] = {
    "base_model": "tiny-qwen3",
    "steps": 12,
    "batch_size": 2,
    "group_size": 2,
    "rank": 4,
    "learning_rate": 1e-3,
    "max_tokens": 6,
    "save_every": 2,
    "exports": (),
}
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery, live: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Rows]:
    """The ledger of a run that nobody disturbs, by staleness."""
    known: dict[int, Rows] = {}

    def run(staleness: int) -> Rows:
        if staleness not in known:
            home = tmp_path_factory.mktemp("undisturbed")
            nursery.live(home, SETTINGS | {"staleness": staleness}, live.env()).until("died")
            known[staleness] = ledger(home)
            assert len(known[staleness]) == 12 * 2 * 2
        return known[staleness]

    return run


def test_a_trainer_reports_its_rewards_to_the_run(live: LiveServer, undisturbed: Callable[[int], Rows]) -> None:
    rows = undisturbed(SETTINGS.get("staleness", 1))
    rewards = [[row["reward"] for row in rows if row["step"] == step] for step in range(1, 13)]

    with live.http() as http:
        runs = [
            run["training_run_id"] for run in http.get("training_runs", params={"limit": 1000}).json()["training_runs"]
        ]
        reported = [http.get(f"training_runs/{run_id}/metrics?names=reward/mean").json()["points"] for run_id in runs]

    expected = [(step, sum(each) / len(each)) for step, each in enumerate(rewards, start=1)]
    assert expected in [[(point["step"], point["values"]["reward/mean"]) for point in points] for points in reported]


def order(rows: Rows) -> list[tuple[int, str]]:
    return [(row["step"], row["sample_id"]) for row in rows]


def test_a_trainer_that_is_killed_again_and_again_trains_on_the_same_rollouts(
    nursery: Nursery, live: LiveServer, undisturbed: Callable[[int], Rows], tmp_path: Path
) -> None:
    killed = live_with_kills(nursery, tmp_path, SETTINGS, live.env(), chance=random.Random(6), kills=4)

    assert killed >= 2
    assert ledger(tmp_path) == undisturbed(1)  # the same ids, versions and rewards: every bit is


@pytest.mark.soak  # test_train_command.py kills one, too
def test_it_waits_for_a_server_that_was_killed_and_goes_on_with_the_next_one(
    nursery: Nursery, undisturbed: Callable[[int], Rows], start_server: Callable[..., LiveServer], tmp_path: Path
) -> None:
    server = start_server()
    life = nursery.live(tmp_path, SETTINGS, server.env())
    assert life.until("step", 3)
    server.kill()
    server.start()
    assert life.until("step", 4)
    life.kill()
    nursery.live(tmp_path, SETTINGS, server.env()).until("died")

    assert ledger(tmp_path) == undisturbed(1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_killed_together_with_its_server_it_goes_on(
    seed: int,
    nursery: Nursery,
    undisturbed: Callable[[int], Rows],
    start_server: Callable[..., LiveServer],
    tmp_path: Path,
) -> None:
    chance, server = random.Random(seed), start_server()
    for _ in range(3):
        life = nursery.live(tmp_path, SETTINGS, server.env())
        life.until("step", chance.randint(1, 4))
        server.kill()
        life.kill()
        server.start()
    nursery.live(tmp_path, SETTINGS, server.env()).until("died")

    assert ledger(tmp_path) == undisturbed(1)


@pytest.mark.soak
@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_whenever_it_is_killed(
    seed: int, staleness: int, nursery: Nursery, live: LiveServer, undisturbed: Callable[[int], Rows], tmp_path: Path
) -> None:
    settings = SETTINGS | {"staleness": staleness}

    killed = live_with_kills(nursery, tmp_path, settings, live.env(), chance=random.Random(seed), kills=10)

    assert killed >= 2
    assert ledger(tmp_path) == undisturbed(staleness)
