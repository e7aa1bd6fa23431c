from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chockstone.checkpoints.errors import ImportRefused
from chockstone.integrations.formats.pickles.pickled_arrays import (
    PickledArray,
    PickledDtype,
    PickledScalar,
    resolve_arrays,
)


def pickled(state: Any) -> PickledArray:
    array = PickledArray()
    array.__setstate__(state)
    return array


def test_an_array_is_made_of_its_shape_type_and_bytes() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)

    rows = resolve_arrays(pickled((1, (2, 3), PickledDtype("f4"), False, values.tobytes())))
    columns = resolve_arrays(pickled((1, (2, 3), PickledDtype("f4"), True, values.tobytes(order="F"))))

    assert np.array_equal(rows, values)
    assert np.array_equal(columns, values)
    assert resolve_arrays(PickledScalar(PickledDtype("i2"), b"\x05\0")) == np.int16(5)


@pytest.mark.parametrize(
    "state",
    [
        None,
        (1, (2,), PickledDtype("O8"), False, b"\0" * 16),
        (1, (2,), PickledDtype("V8"), False, b"\0" * 16),
        (1, (2,), PickledDtype("f4"), False, b"\0" * 7),
        (1, (2**62,), PickledDtype("f4"), False, b""),
        (1, (-1,), PickledDtype("f4"), False, b""),
        (1, (2,), "f4", False, b"\0" * 8),
        (1, (2,), PickledDtype("f4"), False, [1, 2]),
    ],
)
def test_anything_but_plain_numbers_is_refused(state: Any) -> None:
    with pytest.raises(ImportRefused, match="numpy object"):
        resolve_arrays(pickled(state))


def test_another_byte_order_is_refused() -> None:
    dtype = PickledDtype("f4")
    dtype.__setstate__((3, ">", None, None, None, -1, -1, 0))

    with pytest.raises(ImportRefused, match="byte order"):
        resolve_arrays(PickledScalar(dtype, b"\0" * 4))
