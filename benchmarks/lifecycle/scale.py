"""Scale: how many checkpoints there are, how large they are, and how often each thing is measured."""

from __future__ import annotations

from dataclasses import dataclass

MEGABYTE = 1_000_000
LORA, WHOLE = "lora", "whole"  # models, by how the run on them is trained


@dataclass(frozen=True, slots=True)
class Scale:
    listed: int  # checkpoints that the server knows of
    lists: int  # timed requests of each kind
    deleted: int  # in bulk
    deletions: int  # rounds of that
    archive_bytes: int  # of the one that is downloaded
    downloads: int
    lora_bytes: int  # of the state of the L-like run: adapter and moments
    lora_parameters: int  # of the model it is on
    whole_parameters: int  # of the F-like run, which trains them all
    saves: int


FULL = Scale(
    listed=10_000,
    lists=100,
    deleted=1_000,
    deletions=3,
    archive_bytes=1_500 * MEGABYTE,
    downloads=7,
    lora_bytes=60 * MEGABYTE,
    lora_parameters=50_000_000,
    whole_parameters=125_000_000,
    saves=7,
)

QUICK = Scale(
    listed=10_000,
    lists=50,
    deleted=300,
    deletions=1,
    archive_bytes=500 * MEGABYTE,
    downloads=5,
    lora_bytes=60 * MEGABYTE,
    lora_parameters=50_000_000,
    whole_parameters=8_000_000,
    saves=7,
)
