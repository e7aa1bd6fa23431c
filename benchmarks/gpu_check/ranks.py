"""The check of several devices: ranks that hold a model together compute what one process computes."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.families.ranks import follow_one_process
from benchmarks.families.stages import StageFailed
from benchmarks.families.tiny_model import write_model
from benchmarks.gpu_check.checks import CheckSkipped, Numbers, Place

_FAMILIES: Final = ("qwen3", "mixtral")
_SECONDS: Final = 180.0


def train_on_ranks(place: Place) -> Numbers:
    """Two CUDA devices or, in the reduced form, two processes on the CPU."""
    devices = 2 if place.scale.is_reduced else torch.cuda.device_count()
    if devices < 2:  # several
        raise CheckSkipped("there is one device")
    context = multiprocessing.get_context("spawn")
    for family in _FAMILIES[: 1 if place.scale.is_reduced else None]:
        directory = place.directory / family
        write_model(directory / "model", family)
        _run(context, directory, place.scale.device)
    return {"ranks": "2", "families": ", ".join(_FAMILIES[: 1 if place.scale.is_reduced else None])}


def _run(context: Any, directory: Path, device: str) -> None:
    answers = context.SimpleQueue()
    ranks = [context.Process(target=_rank, args=(answers, directory, rank, device)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(_SECONDS)
    hung = [process for process in ranks if process.is_alive()]
    for process in hung:
        process.kill()
    if hung or any(process.exitcode for process in ranks):
        raise StageFailed(f"ranks ended with {[process.exitcode for process in ranks]}")
    errors = [answer["error"] for answer in (answers.get() for _ in ranks) if "error" in answer]
    if errors:
        raise StageFailed(errors[0])


def _rank(answers: Any, directory: Path, rank: int, device: str) -> None:
    answers.put(follow_one_process(directory, rank, 2, device=device))
