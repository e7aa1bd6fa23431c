"""A quantised base for merging: the numbers that a run was trained on, from ordinary files or from quantised ones.

Ordinary files are quantised and dequantised again, a few rows at a time. The result has the type of the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, cast

import torch

from chockstone.backends.export.base_files import BaseFiles, TensorShape, row_ranges
from chockstone.backends.quantisation.layers import FULL
from chockstone.backends.quantisation.stored import (
    NAMES_4BIT,
    NAMES_8BIT,
    StoredError,
    read_4bit,
    read_8bit,
    stored_precision,
)
from chockstone.checkpoints.errors import ExportRefused
from chockstone.sampling.quantised.weight import QuantisedPrecision, quantise

_SPELLED: Final = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_QUANTISATION: Final = "quantization_config"
Layers = Mapping[str, tuple[int, int]]  # weights of layers that can be quantised: [out, in]


class BaseNumbers(Protocol):
    """The weights of a base model, as merging reads them."""

    @property
    def shapes(self) -> Mapping[str, TensorShape]: ...

    def pieces(self, key: str) -> Iterator[torch.Tensor]:
        """The tensor in the slices of ``row_ranges``."""


def open_as_trained(
    files: BaseFiles,
    config: Mapping[str, Any],
    layers: Layers,
    *,
    trained_on: str,
) -> BaseNumbers:
    """The numbers of the base as a run of this precision was trained on them. Raises ExportRefused."""
    try:
        stored = stored_precision(config.get(_QUANTISATION))
    except StoredError as error:
        raise ExportRefused(f"the base model cannot be read: {error}") from error
    if stored is None:
        return files if trained_on == FULL else _Rounded(files, layers, cast("QuantisedPrecision", trained_on))
    if stored != trained_on:
        raise ExportRefused(
            f"the run was trained on a base of precision {trained_on!r}, and the files of this one are quantised to "
            f"{stored}; give the directory of the base model that it was trained on"
        )
    return _Stored(files, layers, stored, dtype=_dtype(config))


def unquantised(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the merged model, whose weights are plain numbers."""
    if stored_precision(config.get(_QUANTISATION)) is None:
        return config
    return {key: value for key, value in config.items() if key != _QUANTISATION}


class _Rounded:
    """Ordinary files, with the numbers that their weights have after quantisation."""

    def __init__(self, files: BaseFiles, layers: Layers, precision: QuantisedPrecision) -> None:
        self._files = files
        self._layers = layers
        self._precision = precision
        self.shapes = files.shapes

    def pieces(self, key: str) -> Iterator[torch.Tensor]:
        for piece in self._files.pieces(key):
            yield quantise(piece, self._precision, dtype=torch.float32).dequantised() if key in self._layers else piece


class _Stored:
    """Files of bitsandbytes. One weight at a time is in memory."""

    def __init__(self, files: BaseFiles, layers: Layers, precision: QuantisedPrecision, *, dtype: str) -> None:
        self._files = files
        self._layers = layers
        self._read = read_4bit if precision == "4bit" else read_8bit
        names = NAMES_4BIT if precision == "4bit" else NAMES_8BIT
        found = {key: {name: key.removesuffix("weight") + name for name in names} for key in layers}
        self._tensors = {
            key: {name: full for name, full in companions.items() if full in files.shapes}
            for key, companions in found.items()
            if sum(full in files.shapes for full in companions.values()) > 1  # the others are not quantised
        }
        used = {full for companions in self._tensors.values() for full in companions.values()}
        self.shapes = {key: shape for key, shape in files.shapes.items() if key not in used} | {
            key: TensorShape(dtype, layers[key]) for key in self._tensors
        }

    def pieces(self, key: str) -> Iterator[torch.Tensor]:
        if key not in self._tensors:
            yield from self._files.pieces(key)
            return
        tensors = {name: self._files.whole(full) for name, full in self._tensors[key].items()}
        try:
            numbers = self._read(tensors, self._layers[key], torch.float32).dequantised()
        except StoredError as error:
            raise ExportRefused(f"weight {key!r} of the base model cannot be read: {error}") from error
        for rows in row_ranges(self.shapes[key]):
            yield numbers[rows]


def _dtype(config: Mapping[str, Any]) -> str:
    """The type of the numbers of quantised files, as safetensors spells it."""
    name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return _SPELLED.get(name, "BF16")
