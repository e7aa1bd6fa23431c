"""Checked files: the files of a whole upload, checked against the base model, with a receipt."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from chockstone.backends.protocol import LayoutReply, RunSpec
from chockstone.engine.imports.adapter_options import CONFIG, MAX_CONFIG_BYTES, AdapterOptions, read_options
from chockstone.engine.imports.fitting import FittedWeights, Shapes, fit_adapter, fit_model
from chockstone.engine.imports.tensor_file import TensorFile
from chockstone.engine.imports.uploads import WeightUpload, WeightUploads
from chockstone.wire.failures import BadRequest

ADAPTER: Final = "adapter_model.safetensors"
MODEL: Final = "model.safetensors"
_HEADER_BYTES: Final = 64 << 10
_HEADER_BYTES_PER_TENSOR: Final = 1 << 10
_BUFFER_BYTES: Final = 1 << 20  # of a model's file, for tensors that are no weights
_LACKS: Final = "optimizer moments and gradient: a run that is created from it begins at optimizer step 0"


def shapes_of(layout: LayoutReply) -> Shapes:
    return {name: tuple(shape) for name, shape in layout.run["layout"]}


def files_of(spec: RunSpec, shapes: Shapes) -> dict[str, int]:
    """The files that an import of such a run consists of, with their maximum sizes."""
    numbers = 4 * sum(math.prod(shape) for shape in shapes.values()) + _header_bytes(shapes)
    if not spec.is_full:
        return {CONFIG: MAX_CONFIG_BYTES, ADAPTER: numbers}
    largest = 4 * max(math.prod(shape) for shape in shapes.values())  # one that is tied may be stored twice
    return {MODEL: numbers + largest + _BUFFER_BYTES}


class CheckedFiles:
    """Close it when the weights are written: they are read from the open file."""

    def __init__(self, file: TensorFile, fitted: FittedWeights, receipt: Mapping[str, Any]) -> None:
        self._file = file
        self.fitted = fitted
        self.receipt = receipt  # plain JSON

    @classmethod
    def open(cls, uploads: WeightUploads, upload: WeightUpload, layout: LayoutReply) -> CheckedFiles:
        """Raises BadRequest. Blocks for as long as reading the files takes."""
        spec, shapes = RunSpec.from_json(upload.spec), shapes_of(layout)
        config = None if spec.is_full else uploads.path(upload, CONFIG)
        options = None if config is None else _options(config, spec)
        file = TensorFile(
            uploads.path(upload, MODEL if options is None else ADAPTER), max_header_bytes=_header_bytes(shapes)
        )
        try:
            if options is None:
                fitted = fit_model(file, shapes)
            else:
                factor = options.scale / layout.scale
                fitted = fit_adapter(file, shapes, rank=spec.rank, factor=factor, seed=spec.seed)
            receipt = _receipt(file, fitted)
            if options is not None and config is not None:
                receipt |= _adapter_receipt(config, options, factor=options.scale / layout.scale)
            return cls(file, fitted, receipt)
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        self._file.close()


def _header_bytes(shapes: Shapes) -> int:
    return _HEADER_BYTES + _HEADER_BYTES_PER_TENSOR * len(shapes)


def _options(config: Path, spec: RunSpec) -> AdapterOptions:
    options = read_options(config.read_bytes())
    if options.rank != spec.rank:
        raise BadRequest(
            f"{CONFIG!r} has the rank {options.rank}, and lora_config of this import has {spec.rank}. Begin the import "
            f"again with rank {options.rank}"
        )
    return options


def _receipt(file: TensorFile, fitted: FittedWeights) -> dict[str, Any]:
    return {
        "format": "full weights",
        "files": {file.name: {"bytes": file.size, "sha256": file.digest()}},
        "tensors": {key: [entry.dtype, *entry.shape] for key, entry in file.entries.items()},
        "untrained_layers": list(fitted.untrained),
        "left_out": list(fitted.left_out),
        "lacks": _LACKS,
    }


def _adapter_receipt(config: Path, options: AdapterOptions, *, factor: float) -> dict[str, Any]:
    content = config.read_bytes()
    digest = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return {
        "format": "PEFT adapter",
        "rank": options.rank,
        "alpha": options.alpha,
        "lora_B_multiplied_by": factor,
        "ignored_options": dict(options.ignored),
        "config_file": {CONFIG: digest},
    }
