"""Stored quantisation: weights in the layouts of bitsandbytes, read as plain tensors.

A directory that transformers saved with bitsandbytes has a ``quantization_config`` in its config.json. NF4 weights have
their codes in ``weight`` and the rest beside it: ``weight.absmax``, which is quantised itself in double quantisation,
and a JSON text in a tensor of bytes. 8-bit weights have one ``SCB`` number, the absmax, per row.

Everything here is untrusted input. ``StoredError`` says what is wrong with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch

from chockstone.sampling.quantised.weight import GROUP, NF4, QuantisedPrecision, QuantisedWeight
from chockstone.wire.codecs.json_files import parse_json

STATE: Final = "weight.quant_state.bitsandbytes__nf4"
NAMES_4BIT: Final = (
    "weight",
    "weight.absmax",
    "weight.nested_absmax",
    "weight.nested_quant_map",
    "weight.quant_map",
    STATE,
)
NAMES_8BIT: Final = ("weight", "SCB", "weight_format")
_LARGEST: Final = 127
Tensors = Mapping[str, torch.Tensor]


class StoredError(ValueError):
    """Quantised files that cannot be read here."""


def stored_precision(config: Any) -> QuantisedPrecision | None:  # Any: a ``quantization_config``, from a file
    """The precision of files of bitsandbytes; None for others. Raises StoredError."""
    if not isinstance(config, Mapping) or config.get("quant_method") != "bitsandbytes":
        return None
    if config.get("load_in_8bit"):
        return "8bit"
    kind = config.get("bnb_4bit_quant_type", "fp4")
    if kind != "nf4" or config.get("bnb_4bit_quant_storage", "uint8") != "uint8":
        raise StoredError(f"its 4-bit files are of type {kind!r:.80}; only NF4, stored as uint8, can be read")
    return "4bit"


def read_4bit(tensors: Tensors, shape: tuple[int, int], dtype: torch.dtype) -> QuantisedWeight:
    """``shape`` is that of the layer. Raises StoredError."""
    facts = _facts(tensors)
    height, width = shape
    if facts.get("shape") != [height, width] or facts.get("blocksize") != GROUP or width % GROUP:
        raise StoredError(
            f"it has shape {facts.get('shape')!r:.80} and groups of {facts.get('blocksize')!r:.80}; expected "
            f"{[height, width]} and groups of {GROUP}"
        )
    codes = _tensor(tensors, "weight", torch.uint8, height * width // 2)
    values = _tensor(tensors, "weight.quant_map", torch.float32, len(NF4))
    if not torch.equal(values.cpu(), torch.tensor(NF4)):
        raise StoredError("its table of values is not that of NF4")
    groups = height * width // GROUP
    if "nested_blocksize" in facts:
        scales = _nested_scales(tensors, facts, groups)
    else:
        scales = _tensor(tensors, "weight.absmax", torch.float32, groups)
    return QuantisedWeight(codes.view(height, -1), scales.view(height, -1), width, dtype)


def read_8bit(tensors: Tensors, shape: tuple[int, int], dtype: torch.dtype) -> QuantisedWeight:
    """``shape`` is that of the layer. Raises StoredError."""
    if (layout := tensors.get("weight_format")) is not None and int(layout) != 0:
        raise StoredError(f"its rows are in the order {int(layout)} of a GPU; save it again with a newer bitsandbytes")
    codes = _tensor(tensors, "weight", torch.int8, math.prod(shape)).view(shape)
    absmax = _tensor(tensors, "SCB", torch.float32, shape[0])
    return QuantisedWeight(codes, absmax / _LARGEST, shape[1], dtype)


def _nested_scales(tensors: Tensors, facts: Mapping[str, Any], groups: int) -> torch.Tensor:
    """Double quantisation: a byte per group selects one of 256 values, times the absmax of a larger group, plus an
    offset."""
    size, offset = facts["nested_blocksize"], facts.get("nested_offset", 0.0)
    if type(size) is not int or size < 1 or type(offset) is not float:
        raise StoredError("its double quantisation is not described by a whole number and an offset")
    codes = _tensor(tensors, "weight.absmax", torch.uint8, groups)
    values = _tensor(tensors, "weight.nested_quant_map", torch.float32, 256)
    absmax = _tensor(tensors, "weight.nested_absmax", torch.float32, -(-groups // size))
    return values[codes.long()] * absmax.repeat_interleave(size)[:groups] + offset


def _facts(tensors: Tensors) -> Mapping[str, Any]:
    encoded = tensors.get(STATE)
    if encoded is None or encoded.dtype != torch.uint8:
        raise StoredError(f"it has no {STATE!r}")
    try:
        facts = parse_json(bytes(encoded.cpu().reshape(-1).numpy()))
    except ValueError as error:
        raise StoredError(f"its {STATE!r} is not JSON") from error
    if not isinstance(facts, dict):
        raise StoredError(f"its {STATE!r} is not a JSON object")
    return facts


def _tensor(tensors: Tensors, name: str, dtype: torch.dtype, size: int) -> torch.Tensor:
    """Flat, with so many elements."""
    found = tensors.get(name)
    if found is None or found.dtype != dtype or found.numel() != size:
        what = "missing" if found is None else f"{found.dtype} {list(found.shape)}"
        raise StoredError(f"its {name!r} is {what}; expected {size} elements of {dtype}")
    return found.reshape(-1)
