"""Scale: how large the models and batches are, and how often each thing is measured."""

from __future__ import annotations

from dataclasses import dataclass

SMALL, MEDIUM, LARGE, WHOLE = "small", "medium", "large", "whole"  # models; the last is trained whole
PROMPT_TOKENS = 64
SMALL_SEQUENCES = 16  # sampled from the small model, 64 tokens each


@dataclass(frozen=True, slots=True)
class Scale:
    small_parameters: int  # where overhead is all there is
    medium_parameters: int
    large_parameters: int  # where arithmetic is
    whole_parameters: int  # trained whole, and saved with its moments
    sequence_tokens: int
    batch_sequences: int
    steps_per_turn: int
    prompts: int
    samples: int
    sampled_tokens: int
    starts: int
    timed_steps: int
    training_rounds: int
    sampling_rounds: int
    small_sampling_rounds: int
    prefix_rounds: int
    sharing_rounds: int
    saves: int
    further_runs: int  # whose memory is measured
    neighbour_rounds: int
    neighbour_seconds: float  # of one turn
    alone_rounds: int  # without a neighbour, of each workload
    spinning_starts: int  # of two new servers; an even number, so that each of them starts first as often
    spinning_rounds: int  # with each two servers
    thread_rounds: int
    decoding_rounds: int
    replica_rounds: int
    replica_steps: int  # of each run in a turn
    moves: int
    kills: int
    killed_steps: int  # of each run


FULL = Scale(
    small_parameters=1_000_000,
    medium_parameters=10_000_000,
    large_parameters=100_000_000,
    whole_parameters=125_000_000,
    sequence_tokens=512,
    batch_sequences=4,
    steps_per_turn=2,
    prompts=32,
    samples=4,
    sampled_tokens=64,
    starts=5,
    timed_steps=200,
    training_rounds=5,
    sampling_rounds=5,
    small_sampling_rounds=15,
    prefix_rounds=3,
    sharing_rounds=5,
    saves=10,
    further_runs=3,
    neighbour_rounds=15,
    neighbour_seconds=1.0,
    alone_rounds=60,
    spinning_starts=4,
    spinning_rounds=6,
    thread_rounds=15,
    decoding_rounds=5,
    replica_rounds=5,
    replica_steps=3,
    moves=5,
    kills=3,
    killed_steps=30,
)

QUICK = Scale(
    small_parameters=1_000_000,
    medium_parameters=10_000_000,
    large_parameters=5_000_000,
    whole_parameters=10_000_000,
    sequence_tokens=128,
    batch_sequences=4,
    steps_per_turn=2,
    prompts=8,
    samples=4,
    sampled_tokens=32,
    starts=1,
    timed_steps=60,
    training_rounds=3,
    sampling_rounds=1,
    small_sampling_rounds=3,
    prefix_rounds=1,
    sharing_rounds=2,
    saves=3,
    further_runs=1,
    neighbour_rounds=2,
    neighbour_seconds=0.4,
    alone_rounds=2,
    spinning_starts=0,
    spinning_rounds=0,
    thread_rounds=2,
    decoding_rounds=1,
    replica_rounds=2,
    replica_steps=4,
    moves=1,
    kills=1,
    killed_steps=12,
)

PIPELINED_OPERATIONS = 200
CONCURRENT_RUNS = 4
