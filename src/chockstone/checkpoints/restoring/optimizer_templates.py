"""Templates: places for the moments of an optimizer that has not made its own yet.

A new optimizer has no state to restore into. What is as large as its parameter is divided as that is, and then
each rank reads its part; without this every rank would get all of it, and the optimizer something that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chockstone.checkpoints.format.dtypes import Dtype
from chockstone.checkpoints.format.shards import is_dtensor
from chockstone.checkpoints.format.tree import TensorReference

Facts = tuple[Dtype, tuple[int, ...]]


def add_templates(saved: Any, supply: Any, live: Any, look_up: Callable[[TensorReference], Facts]) -> Any:
    """``supply``, the state of ``live``, with DTensors for what was saved of divided parameters and is not there.

    Unchanged for what is no optimizer, and for one whose parameters are whole.
    """
    groups = getattr(live, "param_groups", None)
    states = saved.get("state") if isinstance(saved, Mapping) else None
    if not (isinstance(groups, list) and isinstance(states, Mapping) and isinstance(supply, Mapping)):
        return supply
    parameters = [parameter for group in groups for parameter in group["params"]]
    if not any(map(is_dtensor, parameters)):
        return supply
    there = supply.get("state", {})
    templates = {
        index: _templates(parameter, states[index], there.get(index, {}), look_up)
        for index, parameter in enumerate(parameters)
        if is_dtensor(parameter) and isinstance(states.get(index), Mapping)
    }
    return {**supply, "state": {**there, **templates}}


def _templates(
    parameter: Any, saved: Mapping[str, Any], there: Mapping[str, Any], look_up: Callable[[TensorReference], Facts]
) -> Any:
    import torch

    made = dict(there)
    for name, value in saved.items():
        if isinstance(value, TensorReference) and name not in there:
            dtype, shape = look_up(value)
            if shape == tuple(parameter.shape):
                made[name] = torch.empty_like(parameter.detach(), dtype=getattr(torch, dtype.torch_name))
    return made
