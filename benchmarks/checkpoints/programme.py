"""Programme: which measures run on which state, in which order, with how many repeats."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkpoints import limits, ours, peers, states
from benchmarks.checkpoints.contestant import Absent, Contestant
from benchmarks.checkpoints.free_memory import free_memory
from benchmarks.checkpoints.memory import measure_memory
from benchmarks.checkpoints.restoring import measure_restoring
from benchmarks.checkpoints.results import Measure, Results, StateFacts
from benchmarks.checkpoints.saving import SlowTurns, measure_saving
from benchmarks.checkpoints.scaling import measure_scaling
from benchmarks.checkpoints.stage import Stage
from benchmarks.checkpoints.stalling import leaks_later_changes, measure_stalling
from benchmarks.checkpoints.volume import measure_volume

MEASURES = ("save", "stall", "restore", "bytes", "scaling")

REPEATS = {"L": 5, "F": 5}
QUICK_REPEATS = {"L": 5, "F": 1}
SCALING_REPEATS, QUICK_SCALING_REPEATS = 5, 2

StateMaker = Callable[[], states.State]


@dataclass(frozen=True, slots=True)
class Programme:
    wanted: frozenset[str]
    directory: Path
    say: Callable[[str], None]  # what is going on, for whoever waits
    finished: Callable[[Measure, str], None]  # a measure on a state is in the results now


def perform(programme: Programme, results: Results) -> None:
    """Run the wanted measures and add them to ``results``."""
    makers: list[StateMaker] = [states.small_tensors]
    makers.append(states.small_training if results.quick else states.full_training)
    if programme.wanted - {"scaling"}:
        programme.say("starting the peers")
        rivals = peers.gather(programme.directory)
        gc.freeze()  # so that collecting between contestants does not walk every module they imported
        try:
            for make_state in makers:
                _perform_on(make_state, rivals, programme, results)
        finally:
            for rival in rivals:
                if isinstance(rival, Contestant):
                    rival.close()
    if "scaling" in programme.wanted:
        results.scaling = measure_scaling(
            programme.directory,
            repeats=QUICK_SCALING_REPEATS if results.quick else SCALING_REPEATS,
            temperature=results.temperature,
            quick=results.quick,
            say=programme.say,
        )


def _perform_on(
    make_state: StateMaker, rivals: list[Contestant | Absent], programme: Programme, results: Results
) -> None:
    programme.say("filling the state")
    state = make_state()
    name = state.name
    results.states[name] = StateFacts.of(state)
    everyone = [_ours(programme.directory / f"chockstone-{name}"), *rivals]
    contestants = [one for one in everyone if isinstance(one, Contestant)]
    stage = Stage(
        state=state,
        target=state.zeros_like(),
        limits=limits.Limits(state),
        directory=programme.directory,
        contestants=contestants,
        absent=[one for one in everyone if isinstance(one, Absent)],
        repeats=(QUICK_REPEATS if results.quick else REPEATS)[name],
        memory=free_memory(results.temperature, state.size_bytes),
        say=lambda line: programme.say(f"{name}: {line}"),
    )
    try:
        if "save" in programme.wanted:
            results.measured["save", name] = measure_saving(stage, slow=_slow_turns(name, quick=results.quick))
            programme.finished("save", name)
        if "stall" in programme.wanted:
            results.measured["stall", name] = measure_stalling(stage, with_slow=not results.quick)
            if name == "L":
                _note_leaks(results, stage)
            programme.finished("stall", name)
        if "restore" in programme.wanted:
            results.measured["restore", name] = measure_restoring(stage)
            programme.finished("restore", name)
        if "bytes" in programme.wanted:
            results.measured["bytes", name] = measure_volume(stage)
            programme.finished("bytes", name)
    finally:
        for contestant in contestants:
            if contestant.name == ours.NAME:
                contestant.close()

    if "stall" in programme.wanted and name == "F":
        background = [one.name for one in contestants if one.start is not None]
        names = [ours.NAME] if results.quick else [ours.NAME, *(one for one in background if one != ours.NAME)]
        del stage, state, contestants, everyone
        gc.collect()
        results.measured["memory", name] = measure_memory(
            names, make_state=make_state, directory=programme.directory, say=programme.say
        )
        programme.finished("memory", name)


def _slow_turns(state_name: str, *, quick: bool) -> SlowTurns:
    if quick:
        return "never"
    return "every round" if state_name == "L" else "once"


def _note_leaks(results: Results, stage: Stage) -> None:
    """A save that lets later changes through blocks for less time because it does not do the job."""
    to_check = stage.contestants[:1] if results.quick else stage.contestants
    for contestant in to_check:
        series = results.measured["stall", stage.state.name].get(contestant.name)
        if series is None or series.failure is not None:
            continue
        stage.say(f"does a later change leak into the save? {contestant.name}")
        if leaks_later_changes(contestant, stage.state, stage.target):
            series.failure = "no snapshot: a change made after save() returned reached the checkpoint"


def _ours(directory: Path) -> Contestant | Absent:
    directory.mkdir()
    try:
        return ours.contestant(directory)
    except ImportError as error:
        return Absent(ours.NAME, f"ImportError: {error}")
