from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import pytest

from chockstone.engine.replicas.placement import (
    Move,
    PlacedRun,
    PlacementRules,
    ReplicaFacts,
    choose_replica,
    decide_moves,
)

RULES = PlacementRules()


def test_a_run_is_placed_on_the_least_loaded_replica() -> None:
    replicas = [ReplicaFacts(0), ReplicaFacts(1), ReplicaFacts(2)]
    runs = [PlacedRun("a", 0), PlacedRun("b", 1, weight=0.5), PlacedRun("c", 2, weight=2.0)]

    assert choose_replica(replicas, runs) == 1


def test_of_several_with_the_same_load_the_first_takes_the_run() -> None:
    assert choose_replica([ReplicaFacts(3), ReplicaFacts(1)], []) == 1


def test_a_replica_that_is_not_ready_takes_no_run() -> None:
    replicas = [ReplicaFacts(0, is_ready=False), ReplicaFacts(1)]

    assert choose_replica(replicas, [PlacedRun("a", 1)]) == 1
    assert choose_replica(replicas[:1], []) is None


def test_a_replica_that_leaves_takes_a_run_only_if_there_is_no_other() -> None:
    leaving = ReplicaFacts(0, is_leaving=True)

    assert choose_replica([leaving, ReplicaFacts(1)], [PlacedRun("a", 1)]) == 1
    assert choose_replica([leaving], []) == 0


def test_an_even_load_moves_nothing() -> None:
    runs = [PlacedRun(str(number), number % 2) for number in range(9)]

    assert decide_moves([ReplicaFacts(0), ReplicaFacts(1)], runs) == []


def test_a_replica_that_joined_gets_runs_of_the_most_loaded() -> None:
    replicas = [ReplicaFacts(0), ReplicaFacts(1), ReplicaFacts(2)]
    runs = [PlacedRun(f"a{number}", 0) for number in range(6)] + [PlacedRun(f"b{number}", 1) for number in range(4)]

    moves = decide_moves(replicas, runs)

    assert [(move.source, move.target) for move in moves] == [(0, 2), (0, 2), (0, 2)]


def test_a_run_that_would_only_swap_the_loads_stays() -> None:
    assert decide_moves([ReplicaFacts(0), ReplicaFacts(1)], [PlacedRun("heavy", 0, weight=10.0)]) == []


def test_a_run_that_moved_a_moment_ago_rests() -> None:
    replicas = [ReplicaFacts(0), ReplicaFacts(1)]
    runs = [PlacedRun(str(number), 0, rested_seconds=10.0) for number in range(4)]

    assert decide_moves(replicas, runs) == []
    assert len(decide_moves(replicas, runs, PlacementRules(rest_seconds=5.0))) == 2


def test_runs_leave_a_replica_that_leaves_even_if_they_did_not_rest() -> None:
    replicas = [ReplicaFacts(0, is_leaving=True), ReplicaFacts(1), ReplicaFacts(2)]
    runs = [PlacedRun("a", 0, rested_seconds=1.0), PlacedRun("b", 0, weight=2.0), PlacedRun("c", 1)]

    assert decide_moves(replicas, runs) == [Move("b", 0, 2), Move("a", 0, 1)]


def test_runs_of_a_dead_replica_are_recovered_and_not_moved() -> None:
    replicas = [ReplicaFacts(0, is_ready=False), ReplicaFacts(1)]

    assert decide_moves(replicas, [PlacedRun("a", 0), PlacedRun("b", 0)]) == []


def test_a_run_that_cannot_move_stays() -> None:
    runs = [PlacedRun(str(number), 0, is_movable=False) for number in range(8)]

    assert decide_moves([ReplicaFacts(0), ReplicaFacts(1)], runs) == []


@dataclass
class Cluster:
    """A simulation on the real placement code: a round is ``seconds`` long."""

    replicas: dict[int, ReplicaFacts]
    weights: dict[str, float]
    seconds: float = 60.0
    clock: float = 0.0
    places: dict[str, int] = field(default_factory=dict)
    moved_at: dict[str, float] = field(default_factory=dict)
    moves: list[tuple[float, Move]] = field(default_factory=list)

    def facts(self) -> list[PlacedRun]:
        return [
            PlacedRun(
                run_id,
                replica,
                self.weights[run_id],
                None if run_id not in self.moved_at else self.clock - self.moved_at[run_id],
            )
            for run_id, replica in self.places.items()
        ]

    def place(self, run_id: str) -> None:
        chosen = choose_replica(list(self.replicas.values()), self.facts())
        assert chosen is not None
        self.places[run_id] = chosen

    def die(self, replica: int) -> None:
        """Its runs are recovered on others."""
        self.replicas[replica] = ReplicaFacts(replica, is_ready=False)
        for run_id in [run_id for run_id, place in self.places.items() if place == replica]:
            del self.places[run_id]
            self.place(run_id)

    def round(self) -> int:
        moves = decide_moves(list(self.replicas.values()), self.facts(), RULES)
        for move in moves:
            assert self.places[move.run_id] == move.source
            self.places[move.run_id] = move.target
            self.moved_at[move.run_id] = self.clock
            self.moves.append((self.clock, move))
        self.clock += self.seconds
        return len(moves)

    def settle(self, most_rounds: int) -> int:
        """Rounds until nothing moves and all have rested; how many moves that took."""
        count, quiet = 0, 0
        for _ in range(most_rounds):
            made = self.round()
            count, quiet = count + made, 0 if made else quiet + 1
            if quiet > RULES.rest_seconds / self.seconds:
                return count
        raise AssertionError(f"moves do not end within {most_rounds} rounds")

    def assert_even(self) -> None:
        loads = dict.fromkeys((each.replica for each in self.replicas.values() if each.is_ready), 0.0)
        for run_id, replica in self.places.items():
            loads[replica] += self.weights[run_id]
        mean = sum(loads.values()) / len(loads)
        allowed = max(RULES.margin * mean, 2 * max(self.weights.values()))
        assert max(loads.values()) - min(loads.values()) <= allowed + 1e-9, loads


def made(*, seed: int, runs: int = 1000, replicas: int = 64) -> Cluster:
    """Skewed: a few runs have most of the load."""
    choice = random.Random(seed)
    weights = {f"run-{number}": min(20.0, choice.paretovariate(1.2)) for number in range(runs)}
    cluster = Cluster({number: ReplicaFacts(number) for number in range(replicas)}, weights)
    for run_id in weights:
        cluster.place(run_id)
    return cluster


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_runs_on_64_replicas_settle_and_then_stay(seed: int) -> None:
    cluster = made(seed=seed)

    first = cluster.settle(most_rounds=200)

    assert first <= 64  # they were placed well
    cluster.assert_even()
    assert cluster.settle(most_rounds=50) == 0


@pytest.mark.parametrize("seed", range(3))
def test_joins_leaves_and_deaths_move_no_more_runs_than_they_must(seed: int) -> None:
    cluster = made(seed=seed, replicas=56)
    cluster.settle(most_rounds=200)

    for joined in range(56, 64):
        cluster.replicas[joined] = ReplicaFacts(joined)
    after_join = cluster.settle(most_rounds=400)
    cluster.assert_even()
    leaving = [run_id for run_id, place in cluster.places.items() if place < 8]
    for gone in range(8):
        cluster.replicas[gone] = ReplicaFacts(gone, is_leaving=True)
    after_leave = cluster.settle(most_rounds=400)
    assert not [run_id for run_id, place in cluster.places.items() if place < 8]
    for gone in range(8):
        del cluster.replicas[gone]
    cluster.assert_even()
    for dead in range(8, 12):
        cluster.die(dead)
    after_death = cluster.settle(most_rounds=400)
    cluster.assert_even()

    assert after_join <= 2 * 8 * 1000 / 64  # eight replicas joined: at most twice what a fair share of them is
    assert len(leaving) <= after_leave <= len(leaving) + 64
    assert after_death <= 64  # the runs of the dead were placed well


@pytest.mark.parametrize("seed", range(2))
def test_a_load_that_changes_all_the_time_does_not_thrash(seed: int) -> None:
    cluster = made(seed=seed)
    cluster.settle(most_rounds=200)
    choice = random.Random(seed + 100)
    before = len(cluster.moves)

    for _ in range(120):  # two hours
        for run_id in choice.sample(list(cluster.weights), 100):
            cluster.weights[run_id] = min(20.0, choice.paretovariate(1.2))
        cluster.round()

    assert len(cluster.moves) - before <= 120 * RULES.most_moves
    moved: dict[str, list[float]] = {}
    for at, move in cluster.moves:
        moved.setdefault(move.run_id, []).append(at)
    gaps = [later - sooner for times in moved.values() for sooner, later in itertools.pairwise(times)]
    assert all(gap >= RULES.rest_seconds for gap in gaps)
