from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tinker.proto import tinker_public_pb2 as sdk_pb
from tinker.types import Datum, ModelInput, TensorData

from chockstone.wire.codecs import messages_pb2 as pb
from chockstone.wire.codecs.pass_request import PassHead, decode_pass, pass_from_json, peek_pass
from chockstone.wire.codecs.passes import Pass
from chockstone.wire.failures import BadRequest
from support.wire.passes import datum, sdk_body


def same(left: Pass, right: Pass) -> bool:
    heads = [(p.run_id, p.seq_id, p.loss, p.options, p.forward_only, len(p.data)) for p in (left, right)]
    return heads[0] == heads[1] and all(
        np.array_equal(a.tokens, b.tokens)
        and a.inputs.keys() == b.inputs.keys()
        and all(np.array_equal(a.inputs[name], b.inputs[name]) for name in a.inputs)
        for a, b in zip(left.data, right.data, strict=True)
    )


def test_what_the_sdk_encodes_arrives_as_arrays() -> None:
    body = sdk_body(
        datum([1, 2, 3], target_tokens=[2, 3, 4], weights=[0.0, 1.0, -0.5]),
        datum([7], target_tokens=[8], weights=[1.0]),
        options={"beta": 0.05, "loss_id": "l-1"},
        seq_id=9,
    )

    found = decode_pass(body)

    assert (found.run_id, found.seq_id, found.loss, found.forward_only) == ("s:train:0", 9, "cross_entropy", False)
    assert found.options == {"beta": 0.05, "loss_id": "l-1"}
    first, second = found.data
    assert first.tokens.dtype == np.int32 and first.tokens.tolist() == [1, 2, 3]
    assert first.inputs["target_tokens"].dtype == np.int64 and first.inputs["target_tokens"].tolist() == [2, 3, 4]
    assert first.inputs["weights"].dtype == np.float32 and first.inputs["weights"].tolist() == [0.0, 1.0, -0.5]
    assert second.tokens.tolist() == [7]


def test_what_the_sdk_made_sparse_arrives_dense() -> None:
    targets = torch.zeros(6, 8, dtype=torch.int64)
    weights = torch.zeros(6, 8)
    targets[1, 3], targets[5, 7], weights[1, 3], weights[4, 0] = 11, 12, 0.5, -2.0
    made = datum([1, 2, 3, 4, 5, 6], target_tokens=targets, weights=weights)
    assert made.loss_fn_inputs["weights"].sparse_crow_indices is not None

    inputs = decode_pass(sdk_body(made)).data[0].inputs

    assert np.array_equal(inputs["target_tokens"], targets.numpy())
    assert np.array_equal(inputs["weights"], weights.numpy())


def test_chunks_of_text_are_joined() -> None:
    model_input = ModelInput.from_ints([1, 2]).append_int(3)

    found = decode_pass(sdk_body(Datum(model_input=model_input, loss_fn_inputs={})))

    assert found.data[0].tokens.tolist() == [1, 2, 3]


def test_the_head_tells_what_is_needed_to_accept_it() -> None:
    body = sdk_body(datum([1, 2, 3]), datum([4, 5]), forward_only=True, seq_id=2**31 - 1)

    assert peek_pass(body) == PassHead("s:train:0", 2**31 - 1, forward_only=True, datum_count=2, token_count=5)


def test_our_messages_and_the_sdk_s_are_the_same_on_the_wire() -> None:
    for ours in pb.DESCRIPTOR.message_types_by_name.values():
        theirs = sdk_pb.DESCRIPTOR.message_types_by_name[ours.name]
        facts = [
            {(f.number, f.name, f.type, f.is_repeated, f.has_presence) for f in message.fields}
            for message in (ours, theirs)
        ]
        assert facts[0] == facts[1], ours.name
    for name, enum in pb.DESCRIPTOR.enum_types_by_name.items():
        theirs = sdk_pb.DESCRIPTOR.enum_types_by_name[name]
        assert {v.name: v.number for v in enum.values} == {v.name: v.number for v in theirs.values}


def test_numbers_alone_are_read_from_the_older_field() -> None:
    message = pb.ForwardBackwardRequest.FromString(sdk_body(datum([1]), options={"beta": 0.5}))
    message.ClearField("loss_fn_config_v2")

    assert decode_pass(message.SerializeToString()).options == {"beta": 0.5}


def test_text_only() -> None:
    message = pb.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn="cross_entropy")
    message.data.add().model_input.add().encoded_text.tokens = b"\1\0\0\0"
    chunk = message.data.add().model_input.add()

    chunk.image.data = b"png"
    with pytest.raises(BadRequest, match="datum 1: chunk 0 is of type 'image'; this server takes text only"):
        decode_pass(message.SerializeToString())
    chunk.dmel.dmel = b"sound"
    with pytest.raises(BadRequest, match="datum 1: chunk 0 is of type 'dmel'; this server takes text only"):
        decode_pass(message.SerializeToString())
    chunk.ClearField("dmel")
    with pytest.raises(BadRequest, match="datum 1: chunk 0 is empty"):
        decode_pass(message.SerializeToString())


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (b"\1\0\0\0\1", "datum 0: the 5 bytes of chunk 0 are not a whole number of int32 tokens"),
        (b"", "datum 0: there are no tokens"),
        (np.array([1, -7], np.int32).tobytes(), "datum 0: token -7 at position 1 is negative"),
    ],
)
def test_bad_tokens_are_refused(tokens: bytes, words: str) -> None:
    message = pb.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn="cross_entropy")
    message.data.add().model_input.add().encoded_text.tokens = tokens

    with pytest.raises(BadRequest, match=words):
        decode_pass(message.SerializeToString())


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (pb.ForwardBackwardRequest(seq_id=1), "model_id is missing"),
        (pb.ForwardBackwardRequest(model_id="m" * 256, seq_id=1), "is not a run id. Run ids have 1 to 255 characters"),
        (pb.ForwardBackwardRequest(model_id="a\0", seq_id=1), "is not a run id"),
        (pb.ForwardBackwardRequest(model_id="m"), "seq_id must be between 1 and 2147483647, not 0"),
        (pb.ForwardBackwardRequest(model_id="m", seq_id=-4), "not -4"),
    ],
)
def test_a_bad_head_is_refused_at_once(message: pb.ForwardBackwardRequest, words: str) -> None:
    for read in (peek_pass, decode_pass):
        with pytest.raises(BadRequest, match=words):
            read(message.SerializeToString())


def test_a_pass_over_nothing_is_refused() -> None:
    with pytest.raises(BadRequest, match="the request has no data"):
        decode_pass(pb.ForwardBackwardRequest(model_id="m", seq_id=1).SerializeToString())


def test_loss_options_must_have_a_value() -> None:
    message = pb.ForwardBackwardRequest.FromString(sdk_body(datum([1])))

    message.loss_fn_config["beta"] = float("nan")
    with pytest.raises(BadRequest, match="loss option 'beta' is nan"):
        decode_pass(message.SerializeToString())
    message.loss_fn_config_v2["gamma"].SetInParent()
    with pytest.raises(BadRequest, match="loss option 'gamma' has no value"):
        decode_pass(message.SerializeToString())


# The older JSON.


def as_json(*data: Datum, key: str = "forward_backward_input", **head: Any) -> Any:
    """As SDKs before protobuf sent it."""
    given = [
        {
            "model_input": {
                "chunks": [{"tokens": list(c.tokens), "type": "encoded_text"} for c in d.model_input.chunks]
            },
            "loss_fn_inputs": {
                name: {
                    "data": tensor.data,
                    "dtype": tensor.dtype,
                    "shape": tensor.shape,
                    **(
                        {}
                        if tensor.sparse_crow_indices is None
                        else {
                            "sparse_crow_indices": tensor.sparse_crow_indices,
                            "sparse_col_indices": tensor.sparse_col_indices,
                        }
                    ),
                }
                for name, tensor in d.loss_fn_inputs.items()
            },
        }
        for d in data
    ]
    body = {"model_id": "s:train:0", "seq_id": 1, key: {"data": given, "loss_fn": "cross_entropy"}, **head}
    return orjson.loads(orjson.dumps(body))


def test_the_older_json_gives_the_same_pass() -> None:
    weights = torch.zeros(3, 9)
    weights[2, 8] = 0.25
    data = [
        datum([1, 2, 3], target_tokens=torch.ones(3, 9, dtype=torch.int64), weights=weights),
        datum([5], weights=[2.0]),
    ]

    assert same(decode_pass(pass_from_json(as_json(*data))), decode_pass(sdk_body(*data)))


def test_the_older_forward_call_is_a_pass_that_only_goes_forward() -> None:
    body = pass_from_json(as_json(datum([1]), key="forward_input", seq_id=4))

    assert peek_pass(body) == PassHead("s:train:0", 4, forward_only=True, datum_count=1, token_count=1)


def test_options_in_json_may_be_numbers_or_strings() -> None:
    body = as_json(datum([1]))
    body["forward_backward_input"]["loss_fn_config"] = {"beta": 1, "loss_id": "x", "low": 0.5}

    assert decode_pass(pass_from_json(body)).options == {"beta": 1.0, "loss_id": "x", "low": 0.5}


BIG = 10**5000  # more digits than Python prints

CHANGES: list[tuple[list[Any], Any, str]] = [
    ([], [], "the body must be an object, not a list"),
    (["model_id"], 4, "model_id must be a string, not 4"),
    (["model_id"], "", "model_id must not be empty"),
    (["model_id"], "\ud800", "model_id is not Unicode text"),
    (["seq_id"], None, "seq_id must be an integer between 1 and 2147483647, not null"),
    (["seq_id"], 0, "seq_id must be an integer between 1 and 2147483647, not 0"),
    (["seq_id"], True, "seq_id must be an integer between 1 and 2147483647, not true"),
    (["seq_id"], BIG, "not an integer of more than 100 bits"),
    (["forward_input"], {}, "either 'forward_backward_input' or 'forward_input'"),
    (["forward_backward_input"], None, "forward_backward_input must be an object, not null"),
    (["forward_backward_input", "data"], {}, "data must be a list of datums, not an object"),
    (["forward_backward_input", "loss_fn"], None, "loss_fn must be a string"),
    (["forward_backward_input", "loss_fn_config"], [], "loss_fn_config must be an object"),
    (["forward_backward_input", "loss_fn_config"], {"a": None}, "loss option 'a' must be a number, not null"),
    (["forward_backward_input", "loss_fn_config"], {"a": BIG}, "loss option 'a' must be a number"),
    (["forward_backward_input", "loss_fn_config"], {"": 1}, "the name of a loss option must not be empty"),
    (["forward_backward_input", "data", 0], 3, "datum 0 must be an object, not 3"),
    (["forward_backward_input", "data", 0, "model_input"], None, "datum 0, model_input must be an object, not null"),
    (["forward_backward_input", "data", 0, "model_input", "chunks"], 1, "datum 0, model_input: chunks must be a list"),
    (["forward_backward_input", "data", 0, "model_input", "chunks"], [], "datum 0, model_input: there are no tokens"),
    (["forward_backward_input", "data", 0, "model_input", "chunks", 0], 1, "model_input: chunk 0 must be an object"),
    (["forward_backward_input", "data", 0, "model_input", "chunks", 0, "type"], "image", "this server takes text only"),
    (["forward_backward_input", "data", 0, "model_input", "chunks", 0, "type"], [BIG], "this server takes text only"),
    (["forward_backward_input", "data", 0, "model_input", "chunks", 0, "tokens"], [1, 2**31], "tokens[1] must be"),
    (["forward_backward_input", "data", 0, "model_input", "chunks", 0, "tokens"], [True], "tokens[0] must be"),
    (["forward_backward_input", "data", 0, "model_input", "chunks", 0, "tokens"], [1.0], "tokens[0] must be"),
    (["forward_backward_input", "data", 0, "model_input", "chunks", 0, "tokens"], [BIG], "tokens[0] must be"),
    (["forward_backward_input", "data", 0, "model_input", "chunks", 0, "tokens"], "12", "must be a list of integers"),
    (["forward_backward_input", "data", 0, "loss_fn_inputs"], None, "datum 0, loss_fn_inputs must be an object"),
    (["forward_backward_input", "data", 0, "loss_fn_inputs", "w"], [], "datum 0, input 'w' must be an object"),
    (["forward_backward_input", "data", 0, "loss_fn_inputs", "\udfff"], {"dtype": "int64", "data": []}, "not Unicode"),
    (["forward_backward_input", "data", 0, "loss_fn_inputs", "weights", "dtype"], "f", "must be 'float32' or 'int64'"),
    (["forward_backward_input", "data", 0, "loss_fn_inputs", "weights", "dtype"], {}, "must be 'float32' or 'int64'"),
    (
        ["forward_backward_input", "data", 0, "loss_fn_inputs", "weights", "dtype"],
        "int64",
        "data[0] must be an integer",
    ),
    (["forward_backward_input", "data", 0, "loss_fn_inputs", "weights", "shape"], [-1], "shape[0] must be an integer"),
    (["forward_backward_input", "data", 0, "loss_fn_inputs", "weights", "shape"], "1", "shape must be a list"),
    (["forward_backward_input", "data", 0, "loss_fn_inputs", "weights", "data"], [None], "data[0] must be a number"),
    (["forward_backward_input", "data", 0, "loss_fn_inputs", "weights", "data"], [BIG], "too large for float32"),
    (
        ["forward_backward_input", "data", 0, "loss_fn_inputs", "weights", "data"],
        None,
        "data must be a list of numbers",
    ),
    (
        ["forward_backward_input", "data", 0, "loss_fn_inputs", "weights", "sparse_col_indices"],
        [0],
        "crow_indices must",
    ),
]


@pytest.mark.parametrize(("path", "value", "words"), CHANGES, ids=[words for *_, words in CHANGES])
def test_bad_json_is_refused_by_name(path: list[Any], value: Any, words: str) -> None:
    body = as_json(datum([1, 2], weights=[0.5, 1.0]))
    holder = body
    for step in path[:-1]:
        holder = holder[step]
    if path:
        holder[path[-1]] = value
    else:
        body = value

    with pytest.raises(BadRequest) as refusal:
        pass_from_json(body)

    assert words in str(refusal.value)


def test_json_numbers_too_large_for_float32_are_found_by_the_worker() -> None:
    body = as_json(datum([1, 2], weights=[0.5, 1.0]))
    body["forward_backward_input"]["data"][0]["loss_fn_inputs"]["weights"]["data"] = [1.0, 1e39]

    with pytest.raises(BadRequest, match=r"datum 0, input 'weights': element \[1\] is inf"):
        decode_pass(pass_from_json(body))


# Strangers' bytes.

VALID = sdk_body(
    datum([1, 2, 3], target_tokens=[2, 3, 4], weights=[0.0, 1.0, -0.5]),
    datum(
        [1, 2],
        weights=TensorData(
            data=[1.0], dtype="float32", shape=[2, 4], sparse_crow_indices=[0, 0, 1], sparse_col_indices=[3]
        ),
    ),
    options={"beta": 0.5, "loss_id": "a"},
)
EDITS = st.lists(
    st.tuples(st.sampled_from(["set", "cut", "add"]), st.integers(0, len(VALID)), st.binary(min_size=1, max_size=6)),
    min_size=1,
    max_size=4,
)


def mutated(edits: list[tuple[str, int, bytes]]) -> bytes:
    body = bytearray(VALID)
    for how, at, piece in edits:
        if how == "set":
            body[at : at + len(piece)] = piece
        elif how == "add":
            body[at:at] = piece
        else:
            del body[at : at + len(piece)]
    return bytes(body)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(st.one_of(st.binary(max_size=200), EDITS.map(mutated)))
def test_any_bytes_give_a_pass_or_a_refusal(body: bytes) -> None:
    for read in (peek_pass, decode_pass):
        try:
            found = read(body)
        except BadRequest:
            continue
        assert found.run_id and found.seq_id >= 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
PLACES = [path for path, _, _ in CHANGES if path]


@settings(derandomize=True, deadline=None, max_examples=250)
@given(st.sampled_from(PLACES), JSON)
def test_any_json_gives_a_pass_or_a_refusal(path: list[Any], value: Any) -> None:
    body = as_json(datum([1, 2], weights=[0.5, 1.0]))
    holder = body
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value

    with contextlib.suppress(BadRequest):
        decode_pass(pass_from_json(body))
