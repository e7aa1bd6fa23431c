"""Pass requests: from the bytes of a forward_backward call to arrays, and from its older JSON to those bytes.

The API accepts a request by ``peek_pass``; the worker decodes it by ``decode_pass``. Arrays are read-only views of
the request's bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from chockstone.wire.codecs import messages_pb2 as pb
from chockstone.wire.codecs import tensors
from chockstone.wire.codecs.json_values import (
    describe,
    read_integer,
    read_integers,
    read_number,
    read_object,
    read_text,
)
from chockstone.wire.codecs.passes import Array, Datum, Pass
from chockstone.wire.codecs.protobuf import parse
from chockstone.wire.codecs.routing import split_records
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import check_run_id

MAX_SPREAD_BYTES: Final = 1 << 30  # all sparse tensors of one request, spread out
MAX_SEQ_ID: Final = 2**31 - 1
MAX_TOKEN: Final = 2**31 - 1

TEXT_ONLY: Final = "this server takes text only. Send tokens."


@dataclass(frozen=True, slots=True)
class PassHead:
    """What must be known of a pass to accept it."""

    run_id: str
    seq_id: int
    forward_only: bool
    datum_count: int
    token_count: int
    loss_id: str | None = None  # of the custom loss that it uses


def peek_pass(body: bytes) -> PassHead:
    """Parses all of ``body`` but looks into no tensor, so ``decode_pass`` may still refuse it."""
    message = parse(body, pb.ForwardBackwardRequest)
    _check_head(message)
    return PassHead(
        run_id=message.model_id,
        seq_id=message.seq_id,
        forward_only=message.forward_only,
        datum_count=len(message.data),
        token_count=sum(len(chunk.encoded_text.tokens) // 4 for datum in message.data for chunk in datum.model_input),
        loss_id=_custom_loss(message),
    )


def peek_tokens(body: bytes) -> list[npt.NDArray[np.int32]]:
    """The model inputs of a pass. Raises BadRequest if they are malformed."""
    message = parse(body, pb.ForwardBackwardRequest)
    return [_join_chunks(datum.model_input, where=f"datum {index}") for index, datum in enumerate(message.data)]


def decode_pass(body: bytes, *, spread_limit_bytes: int = MAX_SPREAD_BYTES) -> Pass:
    """Checks all that needs no model: tensors are well-formed and finite, but a loss may still refuse them."""
    message = parse(body, pb.ForwardBackwardRequest)
    _check_head(message)
    if not message.data:
        raise BadRequest("the request has no data. Send at least one datum.")
    data: list[Datum] = []
    for index, datum in enumerate(message.data):
        where = f"datum {index}"
        inputs: dict[str, Array] = {}
        for name in sorted(datum.loss_fn_inputs):
            what = f"{where}, input {name!r}"
            tensor = tensors.from_message(datum.loss_fn_inputs[name], where=what)
            inputs[name] = tensor.spread(where=what, limit_bytes=spread_limit_bytes)
            tensors.check_finite(inputs[name], where=what)
            if tensor.csr is not None:
                spread_limit_bytes -= inputs[name].nbytes
        data.append(Datum(_join_chunks(datum.model_input, where=where), inputs))
    return Pass(
        run_id=message.model_id,
        seq_id=message.seq_id,
        data=tuple(data),
        loss=message.loss_fn,
        options=_read_options(message),
        forward_only=message.forward_only,
    )


def decode_routed_pass(body: bytes, *, routing_bytes: int) -> Pass:
    """A pass whose last ``routing_bytes`` bytes are the routing records of its datums."""
    end = len(body) - routing_bytes
    return replace(decode_pass(body[:end]), routing=tuple(split_records(body[end:])))


def pass_from_json(value: object) -> bytes:
    """The older body ``{model_id, seq_id, forward_backward_input | forward_input}`` as the bytes of today's."""
    fields = read_object(value, "the body")
    if ("forward_backward_input" in fields) == ("forward_input" in fields):
        raise BadRequest("the body must have either 'forward_backward_input' or 'forward_input'.")
    forward_only = "forward_input" in fields
    name = "forward_input" if forward_only else "forward_backward_input"
    given = read_object(fields[name], name)
    data = given.get("data")
    if not isinstance(data, list):
        raise BadRequest(f"{name}: data must be a list of datums, not {describe(data)}.")
    message = pb.ForwardBackwardRequest(
        model_id=read_text(fields.get("model_id"), "model_id"),
        seq_id=read_integer(fields.get("seq_id"), "seq_id", low=1, high=MAX_SEQ_ID),
        loss_fn=read_text(given.get("loss_fn"), "loss_fn"),
        forward_only=forward_only,
    )
    _write_options(message, given.get("loss_fn_config"))
    for index, datum in enumerate(data):
        _write_datum(message.data.add(), datum, where=f"datum {index}")
    _check_head(message)
    return message.SerializeToString(deterministic=True)


def tokens_from_json(value: object, name: str) -> npt.NDArray[np.int32]:
    """The tokens of ``{"chunks": [{"type": "encoded_text", "tokens": [...]}, ...]}``, joined."""
    chunks = read_object(value, name).get("chunks")
    if not isinstance(chunks, list):
        raise BadRequest(f"{name}: chunks must be a list, not {describe(chunks)}.")
    parts: list[npt.NDArray[np.int64]] = []
    for index, value in enumerate(chunks):
        chunk = read_object(value, f"{name}: chunk {index}")
        kind = chunk.get("type", "encoded_text")
        if kind != "encoded_text":
            raise BadRequest(f"{name}: chunk {index} is of type {describe(kind)}; {TEXT_ONLY}")
        parts.append(read_integers(chunk.get("tokens"), f"{name}: chunk {index}, tokens", low=0, high=MAX_TOKEN))
    if not any(part.size for part in parts):
        raise BadRequest(f"{name}: there are no tokens.")
    return np.concatenate(parts).astype(np.int32)


def _check_head(message: pb.ForwardBackwardRequest) -> None:
    if not message.model_id:
        raise BadRequest("model_id is missing.")
    check_run_id(message.model_id)
    if message.seq_id < 1:
        raise BadRequest(f"seq_id must be between 1 and {MAX_SEQ_ID}, not {message.seq_id}.")


def _join_chunks(chunks: Iterable[pb.Chunk], *, where: str) -> npt.NDArray[np.int32]:
    parts: list[npt.NDArray[np.int32]] = []
    for index, chunk in enumerate(chunks):
        kind = chunk.WhichOneof("chunk")
        if kind is None:
            raise BadRequest(f"{where}: chunk {index} is empty.")
        if kind != "encoded_text":
            raise BadRequest(f"{where}: chunk {index} is of type {kind!r}; {TEXT_ONLY}")
        data = chunk.encoded_text.tokens
        if len(data) % 4:
            raise BadRequest(f"{where}: the {len(data)} bytes of chunk {index} are not a whole number of int32 tokens.")
        parts.append(np.frombuffer(data, np.dtype("<i4")))
    tokens = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.int32)
    if not tokens.size:
        raise BadRequest(f"{where}: there are no tokens.")
    if tokens.min() < 0:
        position = int(np.argmax(tokens < 0))
        raise BadRequest(f"{where}: token {tokens[position]} at position {position} is negative.")
    return tokens


def _read_options(message: pb.ForwardBackwardRequest) -> Mapping[str, float | str]:
    """Field 7 if there is anything in it: field 5 is a copy without the strings."""
    options: dict[str, float | str] = dict(message.loss_fn_config)
    if message.loss_fn_config_v2:
        options = {}
        for name, value in message.loss_fn_config_v2.items():
            kind = value.WhichOneof("value")
            if kind is None:
                raise BadRequest(f"loss option {name!r} has no value.")
            options[name] = value.number if kind == "number" else value.text
    for name, option in options.items():
        if isinstance(option, float) and math.isnan(option):
            raise BadRequest(f"loss option {name!r} is nan.")
    return dict(sorted(options.items()))


def _custom_loss(message: pb.ForwardBackwardRequest) -> str | None:
    if message.loss_fn != "custom" or "loss_id" not in message.loss_fn_config_v2:
        return None
    return message.loss_fn_config_v2["loss_id"].text or None


def _write_options(message: pb.ForwardBackwardRequest, options: object) -> None:
    if options is None:
        return
    for name, option in read_object(options, "loss_fn_config").items():
        value = message.loss_fn_config_v2[read_text(name, "the name of a loss option")]
        if isinstance(option, str):
            value.text = read_text(option, f"loss option {name!r}", may_be_empty=True)
        else:
            value.number = read_number(option, f"loss option {name!r}")


def _write_datum(message: pb.Datum, value: object, *, where: str) -> None:
    datum = read_object(value, where)
    tokens = tokens_from_json(datum.get("model_input"), f"{where}, model_input")
    message.model_input.add().encoded_text.tokens = tensors.little_endian(tokens, "<i4")
    for name, fields in read_object(datum.get("loss_fn_inputs"), f"{where}, loss_fn_inputs").items():
        tensor = tensors.from_json(fields, where=f"{where}, input {name!r}")
        message.loss_fn_inputs[read_text(name, f"{where}: the name of an input")].CopyFrom(tensors.to_message(tensor))
