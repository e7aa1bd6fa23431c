from __future__ import annotations

import math

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np
from pydantic import TypeAdapter
from tinker.lib.chunked_fwdbwd_helpers import combine_fwd_bwd_output_results
from tinker.proto.response_conv import deserialize_forward_backward_output

from chockstone.wire.codecs import messages_pb2 as pb
from chockstone.wire.codecs.pass_result import encode_pass_result, pass_result_json
from chockstone.wire.codecs.passes import PassResult

METRICS = {"loss:sum": 1.5, "tokens:sum": 3.0}


def arrays(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    return tuple(np.arange(math.prod(shape), dtype=np.float32).reshape(shape) for shape in shapes)


def test_the_sdk_reads_one_output_per_datum() -> None:
    result = PassResult(logprobs=arrays((3,), (1,), (2,)), metrics=METRICS)

    read = deserialize_forward_backward_output(encode_pass_result(result))

    assert [output["logprobs"].shape for output in read.loss_fn_outputs] == [[3], [1], [2]]
    assert [output["logprobs"].data for output in read.loss_fn_outputs] == [[0, 1, 2], [0], [0, 1]]
    assert read.metrics == METRICS
    assert combine_fwd_bwd_output_results([read]).metrics == METRICS


def test_the_same_result_is_the_same_bytes_in_every_process() -> None:
    """Which order protobuf likes best is decided anew by each process; the one of the alphabet stays."""
    names = [f"metric {number:02d}" for number in range(30)]

    encoded = encode_pass_result(PassResult(logprobs=(), metrics=dict.fromkeys(reversed(names), 1.0)))

    places = [encoded.index(name.encode()) for name in names]
    assert places == sorted(places)


def test_a_batch_of_one_kind_is_one_record() -> None:
    same = PassResult(logprobs=arrays((3, 2), (1, 2)), metrics=METRICS)
    mixed = PassResult(logprobs=arrays((3, 2), (1, 2), (4,), (2, 3)), metrics=METRICS)

    assert len(pb.ForwardBackwardOutput.FromString(encode_pass_result(same)).loss_fn_outputs) == 1
    assert len(pb.ForwardBackwardOutput.FromString(encode_pass_result(mixed)).loss_fn_outputs) == 3


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(
        st_np.arrays(
            np.float32,
            st.tuples(st.integers(1, 4)) | st.tuples(st.integers(1, 4), st.integers(1, 3)),
            fill=st.nothing(),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_logprobs_come_back_bit_by_bit_and_in_order(logprobs: list[np.ndarray]) -> None:
    encoded = encode_pass_result(PassResult(logprobs=tuple(logprobs), metrics={"loss:sum": 0.0}))

    read = [output["logprobs"].to_numpy() for output in deserialize_forward_backward_output(encoded).loss_fn_outputs]

    assert [array.shape for array in read] == [array.shape for array in logprobs]
    assert [array.tobytes() for array in read] == [array.tobytes() for array in logprobs]


def test_arrays_in_any_order_of_memory_are_written_row_by_row() -> None:
    logprobs = np.arange(6, dtype=np.float32).reshape(2, 3).T

    read = deserialize_forward_backward_output(encode_pass_result(PassResult((logprobs,), METRICS)))

    assert read.loss_fn_outputs[0]["logprobs"].tolist() == logprobs.tolist()


def test_older_clients_get_the_same_in_json() -> None:
    result = PassResult(logprobs=arrays((3, 2), (4,)), metrics=METRICS)

    answer = orjson.loads(orjson.dumps(pass_result_json(encode_pass_result(result))))

    assert answer == {
        "loss_fn_output_type": "TorchLossReturn",
        "loss_fn_outputs": [
            {"logprobs": {"data": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "dtype": "float32", "shape": [3, 2]}},
            {"logprobs": {"data": [0.0, 1.0, 2.0, 3.0], "dtype": "float32", "shape": [4]}},
        ],
        "metrics": METRICS,
    }


def test_the_loss_of_each_position_stands_beside_its_logprob() -> None:
    logprobs = arrays((3, 2), (1, 2), (4,))
    losses = tuple(-2 * each for each in logprobs)
    encoded = encode_pass_result(PassResult(logprobs, METRICS, elementwise_loss=losses))

    read = deserialize_forward_backward_output(encoded).loss_fn_outputs
    in_json = pass_result_json(encoded)["loss_fn_outputs"]

    assert [set(output) for output in read] == [{"logprobs", "elementwise_loss"}] * 3
    assert [output["elementwise_loss"].tolist() for output in read] == [each.tolist() for each in losses]
    assert [output["elementwise_loss"]["shape"] for output in in_json] == [[3, 2], [1, 2], [4]]
    assert in_json[1]["elementwise_loss"]["data"] == [0.0, -2.0]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_json_lacks_reach_older_clients_as_numbers(number: float) -> None:
    logprobs = np.array([-1.5, number], np.float32)
    encoded = encode_pass_result(PassResult((logprobs,), {"loss:sum": number}))

    answer = orjson.loads(orjson.dumps(pass_result_json(encoded)))

    read = TypeAdapter(dict[str, float]).validate_python(answer["metrics"])["loss:sum"]
    assert np.array_equal(read, number, equal_nan=True)
    data = TypeAdapter(list[int] | list[float]).validate_python(answer["loss_fn_outputs"][0]["logprobs"]["data"])
    assert np.array_equal(np.array(data, np.float32), logprobs, equal_nan=True)
