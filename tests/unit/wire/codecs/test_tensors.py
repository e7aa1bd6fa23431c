"""Tensors in a pass: widened, checked against their shape, spread out within a limit."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from chockstone.wire.codecs import messages_pb2 as pb
from chockstone.wire.codecs.pass_request import decode_pass, peek_pass
from chockstone.wire.failures import BadRequest
from support.wire.passes import body_of, csr, datum, sdk_body


def test_narrow_types_are_widened() -> None:
    found = decode_pass(body_of(dtype=pb.DTYPE_INT32, dense=np.array([-1, 2], np.int32).tobytes(), shape=[2]))
    assert found.data[0].inputs["weights"].dtype == np.int64
    assert found.data[0].inputs["weights"].tolist() == [-1, 2]

    found = decode_pass(body_of(dtype=pb.DTYPE_BFLOAT16, dense=np.array([16256, 49152], np.uint16).tobytes()))
    assert found.data[0].inputs["weights"].dtype == np.float32
    assert found.data[0].inputs["weights"].tolist() == [1.0, -2.0]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (body_of(dtype=1, dense=b"\0" * 8, shape=[3]), "datum 0, input 'weights': shape [3] has 3 elements"),
        (body_of(dtype=1, dense=b"\0" * 8, shape=[-1, -2]), "is not the shape of a tensor"),
        (body_of(dtype=1, dense=b"", shape=[0, 2**62]), "is not the shape of a tensor"),
        (body_of(dtype=1, dense=b"\0" * 4, shape=[1] * 9), "9 dimensions are more than 8"),
        (body_of(dtype=1, dense=b"\0" * 7), "7 bytes are not a whole number of 4-byte elements"),
        (body_of(dtype=0, dense=b"\0" * 8), "dtype 0 is not known"),
        (body_of(dtype=9, dense=b"\0" * 8), "dtype 9 is not known"),
        (body_of(dtype=1), "neither dense nor sparse"),
        (body_of(dtype=1, dense=np.array([1, np.nan], np.float32).tobytes()), "element [1] is nan"),
        (
            body_of(dtype=1, dense=np.array([[1, -np.inf]], np.float32).tobytes(), shape=[1, 2]),
            "element [0, 1] is -inf",
        ),
        (csr([2], [0, 0, 0], []), "needs a shape of [rows, columns], not [2]"),
        (csr([2, 3], [0, 1], [0]), "2 rows need 3 crow_indices, not 2"),
        (csr([2, 3], [0, 1, 1], []), "crow_indices must rise from 0 to the number of values, 0"),
        (csr([2, 3], [0, 2, 1], [0]), "crow_indices must rise"),
        (csr([2, 3], [1, 1, 1], [0]), "crow_indices must rise"),
        (csr([2, 3], [0, -(2**63), 1], [0]), "crow_indices must rise"),
        (csr([2, 3], [0, 2**63 - 1, 1], [0]), "crow_indices must rise"),
        (csr([2, 3], [0, 1, 1], [3]), "col_indices must be between 0 and 2"),
        (csr([2, 3], [0, 1, 1], [-1]), "col_indices must be between 0 and 2"),
        (csr([2, 3], [0, 1, 1], [2**62]), "col_indices must be between 0 and 2"),
        (csr([2, 3], [0, 2, 2], [1, 1]), "col_indices must rise within a row"),
        (csr([2, 3], [0, 1, 1], [0], values=[]), "0 values need as many col_indices, not 1"),
        (csr([2, 3], [0, 1, 1], [0], values=[np.nan]), "element [0, 0] is nan"),
        (csr([2, 2**50], [0, 0, 0], []), "exceed the 1073741824 bytes left"),
        (csr([2, 2**62], [0, 0, 0], []), "is not the shape of a tensor"),
        (csr([1, 0], [0, 1], [0]), "col_indices must be between 0 and -1"),
    ],
)
def test_a_bad_tensor_is_refused_by_name(body: bytes, words: str) -> None:
    peek_pass(body)  # a head does not depend on tensors

    with pytest.raises(BadRequest) as refusal:
        decode_pass(body)

    assert str(refusal.value).startswith("datum 0, input 'weights': ")
    assert words in str(refusal.value)


def test_sparse_tensors_share_one_limit() -> None:
    weights = torch.zeros(4, 100)
    weights[0, 0] = 1.0
    body = sdk_body(*[datum([1, 2, 3, 4], weights=weights)] * 3)

    assert len(decode_pass(body, spread_limit_bytes=4800).data) == 3
    with pytest.raises(BadRequest, match="datum 2, input 'weights': spread out, 4 x 100"):
        decode_pass(body, spread_limit_bytes=4799)


def test_refusing_a_bomb_takes_no_memory() -> None:
    bomb = csr([2, 2**40], [0, 0, 0], [])
    tracemalloc.start()

    with pytest.raises(BadRequest):
        decode_pass(bomb)

    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
