"""Tensors: arrays in and out of their two wire forms, protobuf bytes and JSON lists.

Decoded arrays are dense float32 or int64. Each tensor is checked against its shape, and a sparse tensor is made dense
only if the result fits a limit. Every BadRequest starts with ``where``, which names the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from chockstone.wire.codecs import messages_pb2 as pb
from chockstone.wire.codecs.json_values import describe, read_floats, read_integers, read_object
from chockstone.wire.failures import BadRequest

Array = npt.NDArray[np.float32] | npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]

MAX_DIMENSIONS: Final = 8

_STORED: Final[Mapping[int, np.dtype[Any]]] = {
    pb.DTYPE_FLOAT32: np.dtype("<f4"),
    pb.DTYPE_INT64: np.dtype("<i8"),
    pb.DTYPE_INT32: np.dtype("<i4"),
    pb.DTYPE_BFLOAT16: np.dtype("<u2"),
}


@dataclass(frozen=True, slots=True)
class Csr:
    """Which cells of a matrix are listed: row r has columns ``col[crow[r]:crow[r + 1]]``."""

    crow: Indices
    col: Indices


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as it travelled: ``values`` is flat, and holds the listed cells only when there is a ``csr``."""

    values: Array
    shape: tuple[int, ...] | None  # None: one axis, as long as there are values
    csr: Csr | None = None

    def spread(self, *, where: str, limit_bytes: int, fill: int = 0) -> Array:
        """The dense array; ``fill`` stands in cells that are not listed. The limit is for what was sparse."""
        if self.csr is not None:
            return _spread(self.values, self.csr, self.shape, where=where, limit_bytes=limit_bytes, fill=fill)
        if self.shape is None:
            return self.values
        _check_shape(self.shape, where=where)
        if math.prod(self.shape) != self.values.size:
            raise BadRequest(
                f"{where}: shape {list(self.shape)} has {math.prod(self.shape)} elements, "
                f"but there are {self.values.size} in the data."
            )
        return self.values.reshape(self.shape)


def from_message(message: pb.Tensor, *, where: str) -> Tensor:
    shape = tuple(message.shape) or None
    match message.WhichOneof("encoding"):
        case "dense":
            return Tensor(_elements(message.dense, message.dtype, where=where), shape)
        case "sparse_csr":
            csr = message.sparse_csr
            return Tensor(
                _elements(csr.values, message.dtype, where=where),
                shape,
                Csr(
                    _indices(csr.crow_indices, "crow_indices", where=where),
                    _indices(csr.col_indices, "col_indices", where=where),
                ),
            )
        case _:
            raise BadRequest(f"{where}: the tensor has neither dense nor sparse data.")


def from_json(value: object, *, where: str) -> Tensor:
    """From ``{dtype, data, shape?, sparse_crow_indices?, sparse_col_indices?}``."""
    fields = read_object(value, where)
    dtype = fields.get("dtype")
    if dtype not in ("float32", "int64"):
        raise BadRequest(f"{where}: dtype must be 'float32' or 'int64', not {describe(dtype)}.")
    shape = fields.get("shape")
    if shape is not None:
        shape = tuple(read_integers(shape, f"{where}: shape", low=0).tolist())
    data = fields.get("data")
    values: Array = read_integers(data, f"{where}: data") if dtype == "int64" else read_floats(data, f"{where}: data")
    crow, col = fields.get("sparse_crow_indices"), fields.get("sparse_col_indices")
    if crow is None and col is None:
        return Tensor(values, shape)
    csr = Csr(read_integers(crow, f"{where}: sparse_crow_indices"), read_integers(col, f"{where}: sparse_col_indices"))
    return Tensor(values, shape, csr)


def to_message(tensor: Tensor) -> pb.Tensor:
    """The tensor unchanged, as protobuf. Sparse stays sparse."""
    is_float = tensor.values.dtype == np.float32
    message = pb.Tensor(dtype=pb.DTYPE_FLOAT32 if is_float else pb.DTYPE_INT64, shape=tensor.shape or ())
    data = little_endian(tensor.values, "<f4" if is_float else "<i8")
    if tensor.csr is None:
        message.dense = data
    else:
        message.sparse_csr.values = data
        message.sparse_csr.crow_indices = little_endian(tensor.csr.crow, "<i8")
        message.sparse_csr.col_indices = little_endian(tensor.csr.col, "<i8")
    return message


def little_endian(array: npt.NDArray[Any], dtype: str) -> bytes:
    return array.astype(dtype, copy=False).tobytes()


def check_finite(array: Array, *, where: str) -> None:
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    index = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
    raise BadRequest(f"{where}: element {list(index)} is {array[index]}. Every number must be finite.")


def _elements(data: bytes, dtype: int, *, where: str) -> Array:
    stored = _STORED.get(dtype)
    if stored is None:
        raise BadRequest(f"{where}: dtype {dtype} is not known. Send float32 (1) or int64 (2).")
    if len(data) % stored.itemsize:
        raise BadRequest(f"{where}: {len(data)} bytes are not a whole number of {stored.itemsize}-byte elements.")
    elements = np.frombuffer(data, stored)
    if dtype == pb.DTYPE_INT32:
        return elements.astype(np.int64)
    if dtype == pb.DTYPE_BFLOAT16:
        return (elements.astype(np.uint32) << np.uint32(16)).view(np.float32)  # its upper half
    return elements


def _indices(data: bytes, name: str, *, where: str) -> Indices:
    if len(data) % 8:
        raise BadRequest(f"{where}: {name} of {len(data)} bytes is not a whole number of int64.")
    return np.frombuffer(data, np.dtype("<i8"))


def _check_shape(shape: Sequence[int], *, where: str) -> None:
    if len(shape) > MAX_DIMENSIONS:
        raise BadRequest(f"{where}: {len(shape)} dimensions are more than {MAX_DIMENSIONS}.")
    if min(shape, default=0) < 0 or math.prod(max(extent, 1) for extent in shape) >= 2**59:
        raise BadRequest(f"{where}: {list(shape)} is not the shape of a tensor.")


def _spread(
    values: Array, csr: Csr, shape: tuple[int, ...] | None, *, where: str, limit_bytes: int, fill: int
) -> Array:
    if shape is None or len(shape) != 2:
        raise BadRequest(f"{where}: a sparse tensor needs a shape of [rows, columns], not {list(shape or ())[:10]}.")
    _check_shape(shape, where=where)
    rows, columns = shape
    crow, col = csr.crow, csr.col
    if crow.size != rows + 1:
        raise BadRequest(f"{where}: {rows} rows need {rows + 1} crow_indices, not {crow.size}.")
    if col.size != values.size:
        raise BadRequest(f"{where}: {values.size} values need as many col_indices, not {col.size}.")
    if crow[0] != 0 or crow[-1] != col.size or (crow[1:] < crow[:-1]).any():
        raise BadRequest(f"{where}: crow_indices must rise from 0 to the number of values, {col.size}.")
    if col.size and not (col.min() >= 0 and col.max() < columns):
        raise BadRequest(f"{where}: col_indices must be between 0 and {columns - 1}.")
    if rows * columns * values.itemsize > limit_bytes:
        raise BadRequest(
            f"{where}: spread out, {rows} x {columns} elements exceed the {limit_bytes} bytes left for this request. "
            f"Send fewer datums per request."
        )
    cells = np.repeat(np.arange(rows) * columns, np.diff(crow)) + col
    if (cells[1:] <= cells[:-1]).any():
        raise BadRequest(f"{where}: col_indices must rise within a row, each column listed once.")
    dense = np.full(rows * columns, fill, dtype=values.dtype) if fill else np.zeros(rows * columns, dtype=values.dtype)
    dense[cells] = values
    return dense.reshape(rows, columns)
