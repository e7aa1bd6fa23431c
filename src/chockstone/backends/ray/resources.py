"""Ray resources: what a worker reserves on a node, and the message when the cluster has too little."""

from __future__ import annotations

import math
from collections.abc import Mapping

Resources = Mapping[str, float]  # as Ray names them: CPU, GPU and others


def bundle_of(*, cpus: int, device: str, total: Resources) -> dict[str, float]:
    """What each worker reserves. With the device "auto" that includes a GPU, if the cluster has any."""
    bundle = {"CPU": float(cpus)}
    if device == "cuda" or (device == "auto" and total.get("GPU", 0) >= 1):
        bundle["GPU"] = 1.0
    return bundle


def how_many_fit(bundle: Resources, free: Resources) -> int:
    """An upper bound: the way free resources are spread over nodes may leave room for fewer."""
    return math.floor(min(free.get(name, 0.0) / amount for name, amount in bundle.items()))


def describe_shortage(
    workers: int, fewest: int, bundle: Resources, *, total: Resources, free: Resources, seconds: float
) -> str:
    """The error message: what was asked for, what the cluster has, and what to do."""
    wanted = f"{workers} workers" if workers == fewest else f"{workers} workers, nor for {fewest}"
    if workers == 1:
        wanted = "a worker"
    need = ", ".join(
        f"{_count(fewest * amount, name)} needed, {_number(total.get(name, 0))} in the cluster, "
        f"{_number(free.get(name, 0))} of them free"
        for name, amount in bundle.items()
    )
    advice = "add nodes or lower --workers" if fewest > 1 else "add a node"
    if bundle["CPU"] > 1:
        advice += ", lower --threads"
    if "GPU" in bundle:
        advice += ", or do without GPUs with --device cpu"
    each = " and ".join(_count(amount, name) for name, amount in bundle.items())
    return (
        f"the Ray cluster had no place for {wanted} of {each} each within {seconds:g} seconds: {need}. "
        f"{advice[0].upper()}{advice[1:]}."
    )


def _count(amount: float, name: str) -> str:
    return f"{_number(amount)} {name}{'' if amount == 1 else 's'}"


def _number(amount: float) -> str:
    return f"{amount:g}"
