"""Scale: how large the states are, how much is asked of the server, and how often each thing is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.checkpoints.states import State, full_training, small_tensors, small_training

TINY_PARAMETERS = 1_000_000  # of the model that generates
PROMPT_TOKENS = 16
ANSWER_TOKENS = (16, 20, 24, 28, 32)  # in turn, so that answers do not come all at once
IN_FLIGHT = 32
LORA_BYTES = 60_000_000  # of the L-like run: adapter and moments
SLOW_REWARD_SECONDS = 1.0

L, F = "L", "F"


@dataclass(frozen=True, slots=True)
class Scale:
    full_state: Callable[[], State]
    window_seconds: float  # of saves, at least
    turn_seconds: float  # of such windows and as many without, at least
    watched_seconds: float  # of a loop, at least
    rounds: int  # of turns, and of loop stalls
    around_seconds: float  # of a timeline, before the save and after it
    lora_parameters: int  # of the model that the L-like run is on
    whole_parameters: int  # of the F-like run, which trains them all
    steps: int  # of a trainer, counted
    trainings: int  # rounds of that

    def states(self) -> dict[str, Callable[[], State]]:
        return {L: small_tensors, F: self.full_state}


FULL = Scale(
    full_state=full_training,
    window_seconds=1.0,
    turn_seconds=8.0,
    watched_seconds=3.0,
    rounds=7,
    around_seconds=3.0,
    lora_parameters=50_000_000,
    whole_parameters=125_000_000,
    steps=20,
    trainings=5,
)

QUICK = Scale(
    full_state=small_training,
    window_seconds=0.25,
    turn_seconds=0.0,
    watched_seconds=0.25,
    rounds=1,
    around_seconds=0.5,
    lora_parameters=8_000_000,
    whole_parameters=8_000_000,
    steps=3,
    trainings=1,
)
