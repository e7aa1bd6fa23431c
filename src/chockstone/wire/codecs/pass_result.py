"""Encodes pass results as the bytes that a client gets: logprobs, losses per position, metrics. JSON for older ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from chockstone.wire.codecs import messages_pb2 as pb
from chockstone.wire.codecs.passes import PassResult
from chockstone.wire.codecs.tensors import little_endian

Floats = npt.NDArray[np.float32]
OUTPUT_TYPE: Final = "TorchLossReturn"  # free text; what clients print as the type of an output
LOGPROBS: Final = "logprobs"
ELEMENTWISE_LOSS: Final = "elementwise_loss"  # its sum over all datums is "loss:sum"


def encode_pass_result(result: PassResult) -> bytes:
    """One record for the whole batch if its arrays agree behind the first axis, else one for each run that does.

    The same result gives the same bytes in every process: by default protobuf writes maps in any order.
    """
    message = pb.ForwardBackwardOutput(loss_fn_output_type=OUTPUT_TYPE, metrics=result.metrics)
    fields = {LOGPROBS: result.logprobs}
    if result.elementwise_loss:
        fields[ELEMENTWISE_LOSS] = result.elementwise_loss
    numbers = range(len(result.logprobs))
    for trailing, group in itertools.groupby(numbers, key=lambda number: result.logprobs[number].shape[1:]):
        members = list(group)
        record = message.loss_fn_outputs.add(num_datums=len(members))
        for name, of_datum in fields.items():
            _fill(record.fields[name], [of_datum[number] for number in members], trailing)
    return message.SerializeToString(deterministic=True)


def _fill(field: pb.BatchedTensor, arrays: Sequence[Floats], trailing: Sequence[int]) -> None:
    encoded = [little_endian(array, "<f4") for array in arrays]
    field.data = b"".join(encoded)
    field.offsets = little_endian(np.cumsum([0, *map(len, encoded)], dtype=np.int64), "<i8")
    field.dtype = pb.DTYPE_FLOAT32
    field.trailing_shape.extend(trailing)


def pass_result_json(encoded: bytes) -> dict[str, Any]:
    """What ``encode_pass_result`` wrote, as the object older clients expect."""
    message = pb.ForwardBackwardOutput.FromString(encoded)
    outputs: list[dict[str, Any]] = []
    for record in message.loss_fn_outputs:
        of_datum: list[dict[str, Any]] = [{} for _ in range(record.num_datums)]
        for name in (LOGPROBS, ELEMENTWISE_LOSS):
            if name in record.fields:
                for output, value in zip(of_datum, _json_arrays(record.fields[name]), strict=True):
                    output[name] = value
        outputs += of_datum
    return {
        "loss_fn_output_type": message.loss_fn_output_type,
        "loss_fn_outputs": outputs,
        "metrics": {name: json_number(value) for name, value in message.metrics.items()},
    }


def _json_arrays(field: pb.BatchedTensor) -> Iterator[dict[str, Any]]:
    trailing = list(field.trailing_shape)
    elements = np.frombuffer(field.data, np.dtype("<f4"))
    bounds = (np.frombuffer(field.offsets, np.dtype("<i8")) // 4).tolist()
    for start, end in itertools.pairwise(bounds):
        rows = (end - start) // (math.prod(trailing) or 1)
        data = [json_number(number) for number in elements[start:end].tolist()]
        yield {"data": data, "dtype": "float32", "shape": [rows, *trailing]}


def json_number(number: float) -> float | str:
    """JSON has no NaN or infinity; as strings, clients read them back as the floats they are."""
    return number if math.isfinite(number) else str(number)
