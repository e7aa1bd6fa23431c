"""Pass results: logprobs and metrics as the bytes a client gets, and as JSON for clients before protobuf."""

from __future__ import annotations

import itertools
import math
from typing import Any, Final

import numpy as np

from chockstone.wire import messages_pb2 as pb
from chockstone.wire.passes import PassResult
from chockstone.wire.tensors import little_endian

OUTPUT_TYPE: Final = "TorchLossReturn"  # free text; what clients print as the type of an output
LOGPROBS: Final = "logprobs"


def encode_pass_result(result: PassResult) -> bytes:
    """One record for the whole batch if its arrays agree behind the first axis, else one for each run that does.

    The same result is the same bytes, in every process: without being told, protobuf writes metrics in any order.
    """
    message = pb.ForwardBackwardOutput(loss_fn_output_type=OUTPUT_TYPE, metrics=result.metrics)
    for trailing, run in itertools.groupby(result.logprobs, key=lambda logprobs: logprobs.shape[1:]):
        arrays = [little_endian(logprobs, "<f4") for logprobs in run]
        record = message.loss_fn_outputs.add(num_datums=len(arrays))
        field = record.fields[LOGPROBS]
        field.data = b"".join(arrays)
        field.offsets = little_endian(np.cumsum([0, *map(len, arrays)], dtype=np.int64), "<i8")
        field.dtype = pb.DTYPE_FLOAT32
        field.trailing_shape.extend(trailing)
    return message.SerializeToString(deterministic=True)


def pass_result_json(encoded: bytes) -> dict[str, Any]:
    """What ``encode_pass_result`` wrote, as the object older clients expect."""
    message = pb.ForwardBackwardOutput.FromString(encoded)
    outputs: list[dict[str, Any]] = []
    for record in message.loss_fn_outputs:
        field = record.fields[LOGPROBS]
        trailing = list(field.trailing_shape)
        elements = np.frombuffer(field.data, np.dtype("<f4"))
        bounds = (np.frombuffer(field.offsets, np.dtype("<i8")) // 4).tolist()
        for start, end in itertools.pairwise(bounds):
            rows = (end - start) // (math.prod(trailing) or 1)
            data = [json_number(number) for number in elements[start:end].tolist()]
            outputs.append({LOGPROBS: {"data": data, "dtype": "float32", "shape": [rows, *trailing]}})
    return {
        "loss_fn_output_type": message.loss_fn_output_type,
        "loss_fn_outputs": outputs,
        "metrics": {name: json_number(value) for name, value in message.metrics.items()},
    }


def json_number(number: float) -> float | str:
    """JSON has no NaN or infinity; as strings, clients read them back as the floats they are."""
    return number if math.isfinite(number) else str(number)
