"""Restore templates: sharded tensors for the moments of an optimizer that has not allocated its own yet.

A new optimizer has no state to restore into. A moment of the shape of its parameter gets a DTensor that is sharded as
the parameter is, and each rank reads its part. Without it every rank would read the whole moment, which does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chockstone.checkpoints.format.dtypes import Dtype
from chockstone.checkpoints.format.shards import is_dtensor
from chockstone.checkpoints.format.tree import TensorReference

Facts = tuple[Dtype, tuple[int, ...]]


def add_templates(saved: Any, live_state: Any, live: Any, look_up: Callable[[TensorReference], Facts]) -> Any:
    """``live_state``, the state of ``live``, with a DTensor for each saved moment of a sharded parameter that it lacks.

    Unchanged for objects that are no optimizer, and for optimizers whose parameters are not sharded.
    """
    groups = getattr(live, "param_groups", None)
    states = saved.get("state") if isinstance(saved, Mapping) else None
    if not (isinstance(groups, list) and isinstance(states, Mapping) and isinstance(live_state, Mapping)):
        return live_state
    parameters = [parameter for group in groups for parameter in group["params"]]
    if not any(map(is_dtensor, parameters)):
        return live_state
    present = live_state.get("state", {})
    templates = {
        index: _templates(parameter, states[index], present.get(index, {}), look_up)
        for index, parameter in enumerate(parameters)
        if is_dtensor(parameter) and isinstance(states.get(index), Mapping)
    }
    return {**live_state, "state": {**present, **templates}}


def _templates(
    parameter: Any, saved: Mapping[str, Any], present: Mapping[str, Any], look_up: Callable[[TensorReference], Facts]
) -> Any:
    import torch

    made = dict(present)
    for name, value in saved.items():
        if isinstance(value, TensorReference) and name not in present:
            dtype, shape = look_up(value)
            if shape == tuple(parameter.shape):
                made[name] = torch.empty_like(parameter.detach(), dtype=getattr(torch, dtype.torch_name))
    return made
