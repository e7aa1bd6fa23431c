"""Pickled arrays: stand-ins for numpy's own classes while a ``torch.save`` file is read.

numpy rebuilds arrays from pickles with methods that trust their input. These classes take the same calls, keep what
they were given, and make an array only of plain numbers whose bytes have the right count.
"""

from __future__ import annotations

import math
from reprlib import repr as short_repr
from typing import Any, Final

import numpy as np

from chockstone.checkpoints.errors import ImportRefused
from chockstone.checkpoints.format.dtypes import BY_NUMPY_NAME
from chockstone.checkpoints.format.safetensors_header import is_shape
from chockstone.integrations.formats.pickles.unpickler import StandIn

_ENDIAN: Final = ("<", "=", "|")


class PickledDtype(StandIn):
    """``numpy.dtype(code, align, copy)`` with its state."""

    def __init__(self, code: object = "", *_: object) -> None:
        self.code = code
        self.state: Any = (0, "=")  # Any: from a pickle

    def resolve(self) -> np.dtype[Any]:
        try:
            if not isinstance(self.code, str) or len(self.code) > 3 or self.state[1] not in _ENDIAN:
                raise TypeError("not a plain number of this machine's byte order")
            dtype = np.dtype(self.code)
        except (IndexError, TypeError) as error:
            raise _refused(f"{short_repr(self.code)}, {error}") from None
        if dtype.name not in BY_NUMPY_NAME or not dtype.isnative:
            raise _refused(dtype.name)
        return dtype


class PickledArray(StandIn):
    """``numpy.ndarray`` with its state."""

    def __init__(self, *_: object) -> None:
        """Takes the arguments of numpy's ``_reconstruct(ndarray, (0,), b'b')``; the state follows."""

    def resolve(self) -> np.ndarray[Any, Any]:
        try:
            _, shape, dtype, is_fortran, content = self.state
        except (TypeError, ValueError):
            raise _refused("no state") from None
        if not (isinstance(shape, tuple) and is_shape(shape) and isinstance(dtype, PickledDtype)):
            raise _refused(f"shape {short_repr(shape)}")
        element = dtype.resolve()
        if not isinstance(content, bytes) or len(content) != element.itemsize * math.prod(shape):
            raise _refused(f"{short_repr(shape)} of {element.name}, with another number of bytes")
        flat = np.frombuffer(bytearray(content), dtype=element)
        return flat.reshape(shape, order="F" if is_fortran else "C")


class PickledScalar:
    """``numpy.generic``: one number with its dtype."""

    def __init__(self, dtype: object, content: object) -> None:
        self.dtype = dtype
        self.content = content

    def resolve(self) -> np.generic:
        if not isinstance(self.dtype, PickledDtype):
            raise _refused("a scalar without a dtype")
        element = self.dtype.resolve()
        if not isinstance(self.content, bytes) or len(self.content) != element.itemsize:
            raise _refused(f"a scalar of {element.name} with another number of bytes")
        scalar: np.generic = np.frombuffer(self.content, dtype=element)[0]
        return scalar


# By the names that pickles of numpy 1 and 2 have for them.
STAND_INS: Final[dict[str, Any]] = {
    "numpy.dtype": PickledDtype,
    "numpy.ndarray": PickledArray,
    "numpy.core.multiarray._reconstruct": PickledArray,
    "numpy._core.multiarray._reconstruct": PickledArray,
    "numpy.core.multiarray.scalar": PickledScalar,
    "numpy._core.multiarray.scalar": PickledScalar,
}


def resolve_arrays(value: Any) -> Any:
    """A stand-in as the array or number it stands for; anything else as it is."""
    if isinstance(value, PickledArray | PickledScalar):
        return value.resolve()
    if isinstance(value, PickledDtype):
        raise _refused("a dtype by itself")
    return value


def _refused(what: str) -> ImportRefused:
    return ImportRefused(
        f"the file holds a numpy object that cannot be imported: {what}. Save arrays of plain numbers, or tensors"
    )
