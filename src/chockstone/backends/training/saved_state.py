"""Saved states: the state of a run as ``TrainedRun.state`` makes it and an archive holds it.

    run        spec, and the layout: names and shapes in the order of the flat tensors; of a LoRA run with experts
               also how files name experts, if by expert; the precision of the base model, if it was quantised
    weights    tensors by name
    optimizer  steps, and flat moments if it has stepped
    gradient   flat, or None

A state is untrusted input: the ``saved_`` functions check what they read and raise BadRequest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from chockstone.backends.export.expert_files import ExpertFiles, is_expert_weight
from chockstone.backends.quantisation.layers import FULL, PRECISIONS
from chockstone.backends.run_spec import ALPHA, RunSpec
from chockstone.backends.training.flat_parameters import Parameters, Shapes
from chockstone.backends.training.optimizers import MOMENTS, Optimizer
from chockstone.checkpoints.format.shards import Pieces
from chockstone.sampling.adapter import Adapter, LowRank
from chockstone.wire.failures import BadRequest

State = Mapping[str, Any]


def describe_run(spec: RunSpec, *, base_precision: str) -> dict[str, Any]:
    """What every archive of a run says of it. Runs on an unquantised base do not name its precision."""
    quantised = {} if base_precision == FULL else {"base_precision": base_precision}
    return {"spec": spec.to_json(), **quantised}


def describe_layout(
    spec: RunSpec, shapes: Shapes, *, expert_files: ExpertFiles | None, base_precision: str
) -> dict[str, Any]:
    """What a training archive says of its run."""
    layout = [[name, list(shape)] for name, shape in shapes.items()]
    run: dict[str, Any] = {**describe_run(spec, base_precision=base_precision), "layout": layout}
    if expert_files is not None and not spec.is_full and any(map(is_expert_weight, shapes.values())):
        run["expert_files"] = expert_files.to_json()
    return run


def make_state(
    spec: RunSpec,
    parameters: Parameters,
    *,
    optimizer: Optimizer,
    gradient: torch.Tensor | None,
    expert_files: ExpertFiles | None = None,
    base_precision: str = FULL,
) -> dict[str, Any]:
    moments = {name: parameters.whole(moment) for name, moment in optimizer.moments.items()}
    return {
        "run": describe_layout(spec, parameters.shapes, expert_files=expert_files, base_precision=base_precision),
        "weights": parameters.named(parameters.flat),
        "optimizer": {"steps": optimizer.steps, **moments},
        "gradient": None if gradient is None else parameters.whole(gradient),
    }


def saved_spec(state: State) -> RunSpec:
    try:
        return RunSpec.from_json(state["run"]["spec"])
    except (KeyError, TypeError) as error:
        raise BadRequest("the checkpoint is not a run's training state.") from error


def saved_precision(state: State) -> str:
    """The precision of the base model that the run was trained on."""
    run = state.get("run")
    precision = run.get("base_precision", FULL) if isinstance(run, Mapping) else FULL
    if precision not in PRECISIONS:
        raise BadRequest(
            f"the checkpoint was trained on a base model of precision {precision!r:.80}, which this version does not "
            "know."
        )
    return str(precision)


def saved_weights(state: State, spec: RunSpec, shapes: Shapes) -> Mapping[str, Any]:  # Any: tensors, or Pieces of them
    """The weights, checked against the spec and the shapes of a run."""
    rank = saved_spec(state).rank
    if rank != spec.rank:
        raise BadRequest(f"the checkpoint has rank {rank}, the run {spec.rank}; load it into a run of rank {rank}.")
    weights = state.get("weights")
    if not isinstance(weights, Mapping) or not all(
        isinstance(weight, torch.Tensor | Pieces) for weight in weights.values()
    ):
        raise BadRequest("the checkpoint holds no training state; it was saved for a sampler.")
    different = sorted(set(weights) ^ set(shapes))
    if different:
        raise BadRequest(
            f"checkpoint and run train different layers: {different[0]!r} is in only one of them. "
            "Load it into a run with the same base model, train_attn, train_mlp and train_unembed."
        )
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            raise BadRequest(
                f"{name!r} has shape {list(weights[name].shape)} in the checkpoint and {list(shape)} in the run; "
                "load it into a run with the same base model."
            )
    return weights


def saved_optimizer(state: State, spec: RunSpec, parameters: Parameters) -> Optimizer:
    """A copy of the optimizer, for a run whose weights were checked before."""
    family = saved_spec(state).optimizer
    if family != spec.optimizer:
        raise BadRequest(f"the checkpoint's optimizer is {family!r}, the run's {spec.optimizer!r}.")
    saved = state.get("optimizer")
    if not isinstance(saved, Mapping) or type(saved.get("steps")) is not int:
        raise BadRequest("the checkpoint holds no optimizer; load it without optimizer.")
    optimizer = Optimizer(family)
    optimizer.steps = saved["steps"]
    if optimizer.steps:
        optimizer.moments = {name: _flat(state, saved.get(name), parameters) for name in MOMENTS[family]}
    return optimizer


def saved_gradient(state: State, parameters: Parameters) -> torch.Tensor | None:
    if state.get("gradient") is None:
        return None
    return _flat(state, state["gradient"], parameters)


def saved_adapter(state: State, device: torch.device) -> Adapter:
    """A copy of the matrices of a LoRA run, to sample with."""
    spec = saved_spec(state)
    if spec.is_full:
        raise BadRequest("the checkpoint has all weights of a model, and no adapter.")
    weights = {name: weight.to(device, copy=True) for name, weight in state.get("weights", {}).items()}
    names = [name.removesuffix(".lora_A") for name in weights if name.endswith(".lora_A")]
    if not names or len(weights) != 2 * len(names):
        raise BadRequest("the checkpoint is not a LoRA run's training state.")
    layers = {name: LowRank(weights[f"{name}.lora_A"], weights[f"{name}.lora_B"]) for name in names}
    return Adapter(layers, ALPHA / spec.rank)


def _flat(state: State, flat: Any, parameters: Parameters) -> torch.Tensor:  # Any: as the archive holds it
    """A copy of the part that belongs to this process, on the run's device."""
    shapes = parameters.shapes
    layout = [(name, tuple(shape)) for name, shape in state["run"].get("layout", ())]
    size = sum(map(math.prod, shapes.values()))
    if layout != list(shapes.items()) or not isinstance(flat, torch.Tensor | Pieces) or tuple(flat.shape) != (size,):
        raise BadRequest(
            "the checkpoint's optimizer state is laid out for another version of this model; load it without optimizer."
        )
    return parameters.flat_part(flat).to(parameters.flat.device, copy=True)
