"""Refusals: base models and runs that cannot fit are refused with the numbers, before anything is allocated.

What is free is what the system says: the free memory of the GPU; on a CPU the available memory, within the limit of the
container, and the free swap.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from chockstone.backends.export.weight_headers import WeightHeaders
from chockstone.backends.planning.plan import RunMemory
from chockstone.backends.protocol import HeldMemory
from chockstone.backends.run_spec import BasePrecision, RunSpec
from chockstone.backends.training.activations import free_memory
from chockstone.backends.training.base_model import BaseModel, choose_dtype
from chockstone.backends.training.process_group import ProcessGroup
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.failures import BadRequest, ServerFailure
from chockstone.wire.sizes import format_size

_MEMORY: Final = Path("/proc/meminfo")


def available_bytes(device: torch.device) -> int | None:
    """What may still be allocated before something must end; None where the system does not say."""
    free_bytes = free_memory(device)
    return free_bytes if free_bytes is None or device.type != "cpu" else free_bytes + _free_swap_bytes(_MEMORY)


def check_base(
    name: str, directory: Path, types: tuple[str, BasePrecision], device: torch.device, group: ProcessGroup
) -> None:
    """Raises ServerFailure if the weights cannot fit. All processes of a group call it before they load the model.

    ``types``: the settings of dtype and precision.
    """
    headers, free_bytes = WeightHeaders.read(directory), available_bytes(device)
    failure = None
    if headers is not None and free_bytes is not None:
        needed = _weight_bytes(headers, choose_dtype(name, types[0], device), types[1]) // group.size
        failure = _base_failure(name, headers, needed, free_bytes, group.size)
    group.raise_together(failure)


def _weight_bytes(headers: WeightHeaders, dtype: torch.dtype | str, precision: BasePrecision) -> int:
    """At least: files with packed numbers hold as many bytes as the model will take."""
    if precision != "auto":
        return min(headers.stored_bytes, headers.parameters * int(precision.removesuffix("bit")) // 8)
    if headers.is_packed or not isinstance(dtype, torch.dtype):
        return headers.stored_bytes
    return headers.parameters * dtype.itemsize


def _base_failure(
    name: str, headers: WeightHeaders, needed: int, free_bytes: int, processes: int
) -> ServerFailure | None:
    if needed <= free_bytes:
        return None
    each = f" in each of {processes} processes" if processes > 1 else ""
    return ServerFailure(
        f"model {name!r} does not fit into memory: its {headers.parameters:,} parameters need {format_size(needed)}"
        f"{each}, and {format_size(free_bytes)} are free. Choose a type of fewer bytes (--dtype) or a smaller model, "
        "or free memory. --no-memory-check loads it anyway."
    )


def check_run(base: BaseModel, spec: RunSpec, *, others: Iterable[TrainedRun], free_bytes: int | None) -> None:
    """Raises BadRequest if weights, gradient and moments of a new run cannot fit beside those of the ``others``.

    Called by all processes of a group; a run that does not fit in one of them is refused in all.
    """
    refusal = None if free_bytes is None else _refusal(base, spec, list(others), free_bytes)
    base.process_group.raise_together(refusal)


def _refusal(base: BaseModel, spec: RunSpec, runs: list[TrainedRun], free_bytes: int) -> BadRequest | None:
    needed = RunMemory.of(_count_parameters(base, spec), spec.optimizer).total_bytes
    promised = sum(map(_promised_bytes, runs))
    left = max(0, free_bytes - promised)
    if needed <= left:
        return None
    beside = ""
    if runs:
        other = "1 other run" if len(runs) == 1 else f"{len(runs)} other runs"
        beside = f" beside {other}, which may still take {format_size(promised)}"
    return BadRequest(
        f"the run does not fit into memory: weights, gradient and moments need {format_size(needed)}, and "
        f"{format_size(left)} are free{beside}. {_advice(spec, left, needed)}",
    )


def held_memory(bases: Iterable[BaseModel], runs: Iterable[TrainedRun], *, free_bytes: int | None) -> HeldMemory:
    """For operators. May be called from any thread."""
    base_bytes = sum(base.weight_bytes for base in bases)
    present = list(runs)
    held = sum(run.held_bytes for run in present)
    return HeldMemory(base_bytes, held, sum(map(_promised_bytes, present)), free_bytes)


def _promised_bytes(run: TrainedRun) -> int:
    """What the run will take besides what it holds, once it has trained."""
    total = RunMemory.of(run.trained.parameters.flat.numel(), run.spec.optimizer).total_bytes
    return max(0, total - run.held_bytes)


def _count_parameters(base: BaseModel, spec: RunSpec) -> int:
    """Of the part in this process. Nothing is allocated."""
    if spec.is_full:
        return sum(parameter.numel() for parameter in base.model.parameters()) // base.process_group.size
    return TrainedRun(replace(base, device=torch.device("meta")), spec).parameter_count


def _advice(spec: RunSpec, left: int, needed: int) -> str:
    if spec.is_full:
        return "Create a LoRA run (rank 1 or more) instead of training all weights, or unload other runs."
    rank = spec.rank * left // needed
    smaller = f"Create it with a rank of at most {rank}" if rank else "Train fewer layers"
    return f"{smaller}, or unload other runs."


def _free_swap_bytes(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("SwapFree:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0
