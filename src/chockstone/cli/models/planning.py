"""Plans the memory of a model in a directory, for ``chockstone model plan``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chockstone.backends.planning.outline import ModelOutline
from chockstone.backends.planning.plan import CACHE_BYTES, RUNTIME_BYTES, MemoryPlan, Planner, RunMemory
from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.activations import free_memory
from chockstone.backends.training.micro_batches import TOKENS_ON_CPU, TOKENS_ON_GPU
from chockstone.backends.training.run import TrainedRun
from chockstone.cli.models.directory import format_parameters
from chockstone.cli.output.formatting import format_size
from chockstone.cli.output.reporting import CommandFailed
from chockstone.cli.output.terminal import print_line, print_table
from chockstone.wire.failures import BadRequest, RequestError


class NoPlan(CommandFailed):
    """The model cannot be planned. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    directory: Path
    rank: int
    context: int | None  # None: the longest of the model, at most 32,768
    runs: int
    gpu_bytes: int | None  # None: the memory of this machine, and the model on the CPU
    dtype: str
    optimizer: str
    tokens_per_micro_batch: int  # 0: the default of the device


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    architecture: str
    parameters: int
    dtype: str
    trained_parameters: int
    max_context: int
    cache_bytes_per_token: int | None
    plan: MemoryPlan
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:  # Any: plain JSON
        plan = self.plan
        derived = {"fixed_bytes": plan.fixed_bytes, "total_bytes": plan.total_bytes, "fits": plan.fits}
        return asdict(self) | {"plan": asdict(plan) | derived}


def plan_model(request: PlanRequest) -> PlannedModel:
    """Reads ``config.json`` only; no weights are loaded. Raises NoPlan."""
    is_on_gpu = request.gpu_bytes is not None
    try:
        outline = ModelOutline(request.directory, dtype=request.dtype, device="cuda" if is_on_gpu else "cpu")
        run, notes = _make_run(outline, request)
    except RequestError as error:
        raise NoPlan(str(error)) from error
    planner = Planner(
        device_bytes=request.gpu_bytes if request.gpu_bytes is not None else _memory_here(),
        base_bytes=outline.base_bytes,
        run=RunMemory.of(run.parameter_count, request.optimizer),
        pass_bytes=lambda sequences, tokens, recomputed: outline.pass_bytes(
            run, sequences=sequences, tokens=tokens, recomputed=recomputed
        ),
        max_context=outline.base.max_context,
        cache_bytes=CACHE_BYTES,
        runtime_bytes=RUNTIME_BYTES,
        default_tokens=request.tokens_per_micro_batch or (TOKENS_ON_GPU if is_on_gpu else TOKENS_ON_CPU),
    )
    context = request.context or min(outline.base.max_context, 32_768)
    try:
        plan = planner.plan(context=context, runs=request.runs)
    except Exception as error:  # code of each architecture, on tensors without numbers
        raise NoPlan(
            f"{outline.architecture} cannot be computed on shapes alone: {type(error).__name__}: {error}"
        ) from error
    return PlannedModel(
        architecture=outline.architecture,
        parameters=outline.parameters,
        dtype=outline.dtype,
        trained_parameters=run.parameter_count,
        max_context=outline.base.max_context,
        cache_bytes_per_token=outline.cache_bytes_per_token,
        plan=plan,
        notes=tuple(notes),
    )


def print_plan(planned: PlannedModel) -> None:
    plan, run, largest = planned.plan, planned.plan.run, planned.plan.largest_pass
    trained = format_parameters(planned.trained_parameters)
    each = f"{plan.runs} × {trained}" if plan.runs > 1 else trained
    sequences = f"{largest.sequences} × {largest.context:,}" if largest.sequences > 1 else f"{largest.context:,}"
    per_token = planned.cache_bytes_per_token
    cached = "" if per_token is None else f"{plan.cache_bytes // per_token:,} tokens of samples"
    parts = [
        ("base model", plan.base_bytes, f"{format_parameters(planned.parameters)} parameters, {planned.dtype}"),
        ("trained weights", plan.runs * run.weights_bytes, f"{each} parameters, float32"),
        ("gradients", plan.runs * run.gradient_bytes, "float32"),
        ("moments", plan.runs * run.moments_bytes, "of the optimizer, float32"),
        ("pass", largest.peak_bytes, f"{sequences} tokens, {'recomputed' if largest.recomputes else 'kept'}"),
        ("KV cache", plan.cache_bytes, cached),
        ("runtime", plan.runtime_bytes, "torch and its libraries"),
        ("total", plan.total_bytes, f"of {format_size(plan.device_bytes)}"),
    ]
    print_table(
        ("PART", "SIZE", "SHARE", "OF"),
        [(name, format_size(size), f"{size / plan.device_bytes:.1%}", what) for name, size, what in parts],
        right=("SIZE", "SHARE"),
        alarming=[] if plan.fits else [len(parts) - 1],
    )
    print_line()
    print_line(_verdict(planned))
    for note in planned.notes:
        print_line(f"Note: {note}")


def _verdict(planned: PlannedModel) -> str:
    plan, context = planned.plan, planned.plan.largest_pass.context
    limit = " (the limit of the model)" if plan.longest_context == planned.max_context else ""
    runs = "1 run" if plan.runs == 1 else f"{plan.runs} runs"
    sentences = [
        "It fits."
        if plan.fits
        else f"It does not fit: {format_size(plan.total_bytes - plan.device_bytes)} are missing.",
        f"Longest context beside {runs}: {plan.longest_context:,} tokens{limit}.",
        f"Runs at a context of {context:,}: {plan.most_runs:,}.",
        f"Micro-batches: {plan.tokens_per_micro_batch:,} tokens.",
    ]
    return "\n".join(sentences)


def _make_run(outline: ModelOutline, request: PlanRequest) -> tuple[TrainedRun, list[str]]:
    spec = RunSpec(rank=request.rank, seed=0, optimizer=request.optimizer)
    try:
        return outline.make_run(spec), []
    except BadRequest as error:
        attention = RunSpec(rank=request.rank, seed=0, optimizer=request.optimizer, train_mlp=False)
        return outline.make_run(attention), [f"planned with train_mlp=False: {error}"]


def _memory_here() -> int:
    import torch

    free_bytes = free_memory(torch.device("cpu"))
    if free_bytes is None:
        raise NoPlan("this system does not say how much memory is free; give --gpu-memory")
    return free_bytes
