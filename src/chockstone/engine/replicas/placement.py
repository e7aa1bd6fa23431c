"""Placement: which replica takes a run, and which runs move to another replica. No I/O, no clock.

A run is placed on the replica with the least load. It stays there until its replica leaves or dies, or until the load
is uneven: a move costs a recovery archive and a load, so small differences are left alone.

When no more moves are made, ``highest load - lowest load <= max(margin * mean load, 2 * heaviest run)``, as far as the
runs have rested. The margin is the hysteresis. A move never makes its target as loaded as its source was, so a
constant load ends in a state without moves, and no run moves twice within ``rest_seconds``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlacementRules:
    margin: float = 0.25  # difference of loads, as a share of the mean load, that is left alone
    rest_seconds: float = 300.0  # minimum time between two moves of a run, unless its replica leaves
    most_moves: int = 4  # that are decided on at once, besides those off replicas that leave


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    replica: int
    is_ready: bool = True  # a replica that starts or died takes no run
    is_leaving: bool = False  # its runs move away as soon as another replica is ready


@dataclass(frozen=True, slots=True)
class PlacedRun:
    run_id: str
    replica: int
    weight: float = 1.0  # its share of the load, in any unit
    rested_seconds: float | None = None  # since its last move; None: it was never moved
    is_movable: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    run_id: str
    source: int
    target: int


def choose_replica(replicas: Sequence[ReplicaFacts], runs: Iterable[PlacedRun]) -> int | None:
    """The replica that takes a new, woken or recovered run; None: no replica is ready.

    The least loaded one; the first of several with the same load. One that leaves is chosen only if there is no other.
    """
    ready = [each for each in replicas if each.is_ready]
    staying = [each for each in ready if not each.is_leaving]
    loads = _loads(replicas, runs)
    chosen = min(staying or ready, key=lambda each: (loads[each.replica], each.replica), default=None)
    return None if chosen is None else chosen.replica


def decide_moves(
    replicas: Sequence[ReplicaFacts], runs: Sequence[PlacedRun], rules: PlacementRules | None = None
) -> list[Move]:
    """The moves to make now, in order; none where the load is even enough. Runs of replicas that are not ready stay."""
    rules = rules or PlacementRules()
    targets = [each.replica for each in replicas if each.is_ready and not each.is_leaving]
    if not targets:
        return []
    loads = _loads(replicas, runs)
    leaving = {each.replica for each in replicas if each.is_ready and each.is_leaving}
    moves = _evacuate([run for run in runs if run.replica in leaving and run.is_movable], targets, loads)
    return moves + _level([run for run in runs if run.replica in targets], targets, loads, rules)


def _loads(replicas: Iterable[ReplicaFacts], runs: Iterable[PlacedRun]) -> dict[int, float]:
    loads = {each.replica: 0.0 for each in replicas}
    for run in runs:
        loads[run.replica] = loads.get(run.replica, 0.0) + run.weight
    return loads


def _evacuate(runs: list[PlacedRun], targets: list[int], loads: dict[int, float]) -> list[Move]:
    """The heaviest runs first: the light ones level what these leave uneven."""
    ordered = sorted(runs, key=lambda run: (-run.weight, run.run_id))
    return [_move(run, _least_loaded(targets, loads), loads) for run in ordered]


def _level(runs: list[PlacedRun], targets: list[int], loads: dict[int, float], rules: PlacementRules) -> list[Move]:
    """Moves from the most to the least loaded replicas, while that evens the load by more than the margin."""
    margin = rules.margin * sum(loads[target] for target in targets) / len(targets)
    rested = [run for run in runs if run.is_movable and _has_rested(run, rules)]
    moves: list[Move] = []
    while len(moves) < rules.most_moves:
        lowest = _least_loaded(targets, loads)
        run = _find_movable(rested, lowest, loads, margin)
        if run is None:
            return moves
        rested.remove(run)
        moves.append(_move(run, lowest, loads))
    return moves


def _find_movable(rested: list[PlacedRun], target: int, loads: dict[int, float], margin: float) -> PlacedRun | None:
    """The heaviest run of the most loaded replica whose move leaves it no less loaded than the target."""
    found: PlacedRun | None = None
    for run in rested:
        gap = loads[run.replica] - loads[target]
        if gap <= margin or not 0.0 < run.weight <= gap / 2:
            continue
        if found is None or _rank(run, loads) > _rank(found, loads):
            found = run
    return found


def _rank(run: PlacedRun, loads: dict[int, float]) -> tuple[float, float]:
    return loads[run.replica], run.weight


def _least_loaded(targets: list[int], loads: dict[int, float]) -> int:
    return min(targets, key=lambda target: (loads[target], target))


def _has_rested(run: PlacedRun, rules: PlacementRules) -> bool:
    return run.rested_seconds is None or run.rested_seconds >= rules.rest_seconds


def _move(run: PlacedRun, target: int, loads: dict[int, float]) -> Move:
    """Changes the loads, so that the next move is decided on what this one leaves."""
    loads[run.replica] -= run.weight
    loads[target] += run.weight
    return Move(run.run_id, run.replica, target)
