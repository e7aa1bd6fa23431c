"""Bodies of forward_backward: as the SDK writes them, and with tensors of any protobuf fields."""

from __future__ import annotations

from typing import Any

import numpy as np
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.types import Datum, ForwardBackwardInput, ForwardBackwardRequest, ModelInput

from chockstone.wire.codecs import messages_pb2 as pb


def sdk_body(*data: Datum, options: dict[str, Any] | None = None, forward_only: bool = False, seq_id: int = 1) -> bytes:
    request = ForwardBackwardRequest(
        forward_backward_input=ForwardBackwardInput(data=list(data), loss_fn="cross_entropy", loss_fn_config=options),
        model_id="s:train:0",
        seq_id=seq_id,
    )
    message = forward_backward_request_to_proto(request)
    message.forward_only = forward_only
    return bytes(message.SerializeToString())


def datum(tokens: list[int], **inputs: Any) -> Datum:
    return Datum(model_input=ModelInput.from_ints(tokens), loss_fn_inputs=inputs)


def body_of(**tensor: Any) -> bytes:
    """A pass of two tokens whose one input is a tensor of these protobuf fields."""
    message = pb.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn="cross_entropy")
    added = message.data.add()
    added.model_input.add().encoded_text.tokens = np.array([1, 2], np.int32).tobytes()
    added.loss_fn_inputs["weights"].CopyFrom(pb.Tensor(**tensor))
    return message.SerializeToString()


def csr(
    shape: list[int], crow: list[int], col: list[int], values: list[float] | None = None, dtype: Any = pb.DTYPE_FLOAT32
) -> bytes:
    values = [1.0] * len(col) if values is None else values
    return body_of(
        dtype=dtype,
        shape=shape,
        sparse_csr=pb.SparseCsr(
            values=np.array(values, np.float32).tobytes(),
            crow_indices=np.array(crow, np.int64).tobytes(),
            col_indices=np.array(col, np.int64).tobytes(),
        ),
    )
