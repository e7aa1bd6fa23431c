"""Base files: reads single tensors of a model directory, without creating the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open

from chockstone.backends.export.model_files import INDEX, WEIGHTS
from chockstone.checkpoints.errors import ExportRefused
from chockstone.checkpoints.format.dtypes import STORED_ITEMSIZE
from chockstone.wire.codecs.json_files import parse_json

PIECE_BYTES: Final = 64 * 1024**2


class TensorShape(NamedTuple):
    dtype: str  # as safetensors spells it
    extents: tuple[int, ...]


class BaseFiles:
    """A context manager over the open files. They are mapped, so only what is read takes memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open = ExitStack()
        self._files: dict[str, Any] = {}  # by tensor; Any: open files of safetensors
        self.shapes: dict[str, TensorShape] = {}

    def __enter__(self) -> Self:
        try:
            for path in self._paths():
                file = self._open.enter_context(safe_open(path, framework="pt"))
                for key in file.keys():  # noqa: SIM118  # it is no mapping
                    self._files[key] = file
                    self.shapes[key] = _shape(key, file.get_slice(key))
        except (OSError, SafetensorError) as error:
            self._open.close()
            raise ExportRefused(f"the base model in {str(self._directory)!r} cannot be read: {error}") from error
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def pieces(self, key: str) -> Iterator[torch.Tensor]:
        """The tensor in slices of its first axis, a few megabytes each."""
        shape = self.shapes[key]
        if not shape.extents:
            yield self._files[key].get_tensor(key)
            return
        tensor = self._files[key].get_slice(key)
        for rows in row_ranges(shape):
            yield tensor[rows]

    def rows(self, key: str, rows: slice) -> torch.Tensor:
        """Some rows of the tensor."""
        tensor: torch.Tensor = self._files[key].get_slice(key)[rows]
        return tensor

    def whole(self, key: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[key].get_tensor(key)
        return tensor

    def _paths(self) -> list[Path]:
        try:
            index = parse_json((self._directory / INDEX).read_bytes())
            names = sorted({str(name) for name in index["weight_map"].values()})
        except FileNotFoundError:
            names = [WEIGHTS]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExportRefused(f"{str(self._directory / INDEX)!r} is not an index of safetensors files") from error
        paths = [self._directory / Path(name).name for name in names]
        if missing := [path for path in paths if not path.is_file()]:
            raise ExportRefused(
                f"the base model has no file {str(missing[0])!r}; give a directory with safetensors, as "
                "save_pretrained writes it"
            )
        return paths


def row_ranges(shape: TensorShape) -> Iterator[slice]:
    """Slices that together cover the first axis."""
    height = shape.extents[0]
    row_bytes = STORED_ITEMSIZE[shape.dtype]
    for extent in shape.extents[1:]:
        row_bytes *= extent
    step = max(1, PIECE_BYTES // max(row_bytes, 1))
    for start in range(0, height, step):
        yield slice(start, min(start + step, height))


def _shape(key: str, tensor: Any) -> TensorShape:  # Any: a safetensors slice
    dtype = tensor.get_dtype()
    if dtype not in STORED_ITEMSIZE:
        raise ExportRefused(f"tensor {key!r} of the base model has the type {dtype}, which cannot be copied here")
    return TensorShape(dtype, tuple(tensor.get_shape()))
