"""Fitting: the tensors of a file as the weights of a run, checked name by name and number by number.

A run multiplies the product of its matrices by a scale of its own. An adapter with another scale is imported with its
``lora_B`` multiplied by the quotient, so it computes the same function.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from chockstone.checkpoints.format.deferred_tensor import DeferredTensor
from chockstone.engine.imports.tensor_file import TensorFile
from chockstone.wire.failures import BadRequest

Numbers = npt.NDArray[np.float32]
Shapes = Mapping[str, tuple[int, ...]]
_KEY: Final = re.compile(r"(?:base_model\.model\.)?(?P<layer>.+)\.(?P<matrix>lora_[AB])(?:\.default)?\.weight")
_DOWN, _UP = ".lora_A", ".lora_B"
_BUFFERS: Final = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")  # that old files hold


@dataclass(frozen=True, slots=True)
class FittedWeights:
    weights: Mapping[str, DeferredTensor]  # by the names that the run has for them
    untrained: tuple[str, ...] = ()  # layers that the file does not have: they start as in a new run
    left_out: tuple[str, ...] = ()  # tensors of the file that are not weights of the run


def fit_adapter(file: TensorFile, shapes: Shapes, *, rank: int, factor: float, seed: int) -> FittedWeights:
    """The matrices of a PEFT file. ``factor``: the scale of the adapter by that of the run. Raises BadRequest.

    The file must stay open while the weights are used.
    """
    keys: dict[str, str] = {}
    for key, entry in file.entries.items():
        found = _KEY.fullmatch(key)
        name = "" if found is None else f"{found['layer']}.{found['matrix']}"
        if name not in shapes:
            raise _unknown(file, key, shapes)
        if name in keys:
            raise BadRequest(f"{file.name!r} has two tensors for {name!r}: {keys[name]!r} and {key!r}; keep one")
        if entry.shape != shapes[name]:
            raise BadRequest(
                f"tensor {key!r} of {file.name!r} has the shape {list(entry.shape)}, and this base model takes "
                f"{list(shapes[name])} at rank {rank}. Import the adapter for the base model that it was trained on"
            )
        keys[name] = key
    layers = {name.removesuffix(_DOWN).removesuffix(_UP) for name in keys}
    if not layers:
        raise BadRequest(f"{file.name!r} holds no matrices of an adapter. Send adapter_model.safetensors of PEFT")
    if lone := next((n for layer in sorted(layers) for n in (layer + _DOWN, layer + _UP) if n not in keys), None):
        raise BadRequest(f"{file.name!r} lacks {lone!r}: the matrices of a layer come in pairs. Send the whole file")
    weights: dict[str, DeferredTensor] = {}
    for name, shape in shapes.items():
        if name in keys:
            make = _scaled(file, keys[name], factor if name.endswith(_UP) else 1.0)
            _check_finite(file, keys[name], make())
        else:
            make = _first_numbers(name, shape, seed)
        weights[name] = DeferredTensor(shape, make)
    untrained = dict.fromkeys(name.removesuffix(_DOWN).removesuffix(_UP) for name in shapes if name not in keys)
    return FittedWeights(weights, tuple(untrained))


def fit_model(file: TensorFile, shapes: Shapes) -> FittedWeights:
    """All weights of a model. Raises BadRequest. The file must stay open while the weights are used."""
    if missing := sorted(shapes.keys() - file.entries.keys()):
        raise BadRequest(
            f"{file.name!r} lacks {missing[0]!r} and {len(missing) - 1} more weights of this base model. Import full "
            "weights of the same architecture, with the names that save_pretrained gives them"
        )
    weights: dict[str, DeferredTensor] = {}
    for name, shape in shapes.items():
        if file.entries[name].shape != shape:
            raise BadRequest(
                f"tensor {name!r} of {file.name!r} has the shape {list(file.entries[name].shape)}, and this base model "
                f"has {list(shape)}. Import weights of the same architecture and size"
            )
        make = _scaled(file, name, 1.0)
        _check_finite(file, name, make())
        weights[name] = DeferredTensor(shape, make)
    left_out = sorted(file.entries.keys() - shapes.keys())
    for key in left_out:
        if not key.endswith(_BUFFERS) and not _is_tied(file, key, shapes):
            raise _unknown(file, key, shapes)
    return FittedWeights(weights, left_out=tuple(left_out))


def _scaled(file: TensorFile, key: str, factor: float) -> Callable[[], Numbers]:
    def make() -> Numbers:
        numbers = file.numbers(key)
        with np.errstate(over="ignore", invalid="ignore"):  # the check for finite numbers refuses them
            return numbers if factor == 1.0 else (numbers.astype(np.float64) * factor).astype(np.float32)

    return make


def _first_numbers(name: str, shape: tuple[int, ...], seed: int) -> Callable[[], Numbers]:
    """Those of a layer that was not trained: the product of its matrices is zero, and it can be trained."""

    def make() -> Numbers:
        if name.endswith(_UP):
            return np.zeros(shape, np.float32)
        digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        bound = 1 / math.sqrt(shape[-1])
        drawn = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "little"))).uniform(-bound, bound, shape)
        return drawn.astype(np.float32)

    return make


def _check_finite(file: TensorFile, key: str, numbers: Numbers) -> None:
    if not np.isfinite(numbers).all():
        raise BadRequest(
            f"tensor {key!r} of {file.name!r} has numbers that are not finite in float32; a run with them could not "
            "sample or train. Import an earlier checkpoint"
        )


def _is_tied(file: TensorFile, key: str, shapes: Shapes) -> bool:
    """Whether the tensor repeats a weight that the run has under another name."""
    shape = file.entries[key].shape
    same = [name for name, other in shapes.items() if other == shape]
    return any(np.array_equal(file.numbers(key), file.numbers(name)) for name in same)


def _unknown(file: TensorFile, key: str, shapes: Shapes) -> BadRequest:
    known = ", ".join(sorted(shapes)[:3])
    return BadRequest(
        f"tensor {key!r:.300} of {file.name!r} is no weight that such a run trains. It trains {len(shapes)} tensors, "
        f"such as {known}. Check the base model, and lora_config: train_attn, train_mlp and train_unembed"
    )
