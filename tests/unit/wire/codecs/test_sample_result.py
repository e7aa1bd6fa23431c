from __future__ import annotations

from typing import Any

import numpy as np
import orjson
from tinker.proto.response_conv import deserialize_sample_response

from chockstone.wire.codecs.sample_result import encode_sample_result, read_prompt_logprobs, sample_result_json
from chockstone.wire.codecs.samples import SampledSequence, SampleRequest, SampleResult, SamplingParams, Targets, TopK


def request(prompt: int = 4, **fields: Any) -> SampleRequest:
    return SampleRequest(
        prompt=np.arange(1, prompt + 1, dtype=np.int32), num_samples=1, params=SamplingParams(), **fields
    )


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def topk(tokens: list[list[int]], logprobs: list[list[float]]) -> TopK:
    return TopK(np.array(tokens, np.int32), np.array(logprobs, np.float32))


SEQUENCE = SampledSequence(np.array([7, 9], np.int32), floats(-0.5, -1.25), "stop")


def test_the_sdk_reads_sequences_in_order() -> None:
    other = SampledSequence(np.array([3], np.int32), floats(-2.0), "length", topk([[3, 4]], [[-2.0, -3.0]]))

    read = deserialize_sample_response(
        encode_sample_result(SampleResult((SEQUENCE, other), prompt_cache_hit_tokens=3), request())
    )

    first, second = read.sequences
    assert (first.tokens, first.logprobs, first.stop_reason, first.topk_logprobs) == (
        [7, 9],
        [-0.5, -1.25],
        "stop",
        None,
    )
    assert (second.tokens, second.stop_reason) == ([3], "length")
    assert second.topk_logprobs == [[(3, -2.0), (4, -3.0)]]
    assert read.prompt_logprobs is read.topk_prompt_logprobs is None
    assert read.target_prompt_logprobs is read.prompt_alt_tokens is None
    assert read.prompt_cache_hit_tokens == 3


def test_the_sdk_reads_everything_about_the_prompt() -> None:
    result = SampleResult(
        sequences=(SEQUENCE,),
        prompt_logprobs=floats(np.nan, -1.0, -2.0),
        topk_prompt_logprobs=topk([[0, 0], [5, 6], [7, 0]], [[-99999, -99999], [-1, -2], [-3, -99999]]),
        prompt_alt_tokens=topk([[1, 2], [3, 4]], [[-1, -2], [-3, -4]]),
    )

    read = deserialize_sample_response(encode_sample_result(result, request(3)))

    assert read.prompt_logprobs == [None, -1.0, -2.0]
    assert read.topk_prompt_logprobs == [None, [(5, -1.0), (6, -2.0)], [(7, -3.0)]]
    assert read.prompt_alt_tokens is not None
    assert read.prompt_alt_tokens.tokens.tolist() == [[1, 2], [3, 4]]
    assert read.prompt_alt_tokens.logprobs.tolist() == [[-1.0, -2.0], [-3.0, -4.0]]


def test_target_logprobs_are_dense_when_targets_were() -> None:
    targets = Targets(np.array([[4, -1], [5, 6]]), is_sparse=False)
    result = SampleResult((SEQUENCE,), target_prompt_logprobs=np.array([[-4, 0], [-5, -6]], np.float32))

    read = deserialize_sample_response(encode_sample_result(result, request(3, targets=targets))).target_prompt_logprobs

    assert read is not None and read.sparse_crow_indices is None and read.shape == [2, 2]
    assert read.tolist() == [[-4.0, 0.0], [-5.0, -6.0]]


def test_target_logprobs_are_sparse_when_targets_were() -> None:
    targets = Targets(np.array([[4, -1, 0], [-1, -1, -1], [-1, 6, -1]]), is_sparse=True)
    logprobs = np.array([[-4, 0, -1], [0, 0, 0], [0, -6, 0]], np.float32)

    encoded = encode_sample_result(
        SampleResult((SEQUENCE,), target_prompt_logprobs=logprobs), request(4, targets=targets)
    )

    read = deserialize_sample_response(encoded).target_prompt_logprobs
    assert read is not None and read.shape == [3, 3]
    assert (read.sparse_crow_indices, read.sparse_col_indices) == ([0, 2, 2, 3], [0, 2, 1])
    assert read.tolist() == logprobs.tolist()


def test_a_prompt_of_one_token_has_no_positions_to_score() -> None:
    empty = TopK(np.empty((0, 2), np.int32), np.empty((0, 2), np.float32))
    for is_sparse in (False, True):
        targets = Targets(np.empty((0, 2), np.int64), is_sparse=is_sparse)
        result = SampleResult(
            (SEQUENCE,),
            prompt_logprobs=floats(np.nan),
            target_prompt_logprobs=np.empty((0, 2), np.float32),
            prompt_alt_tokens=empty,
        )

        read = deserialize_sample_response(encode_sample_result(result, request(1, targets=targets)))

        assert read.prompt_logprobs == [None]
        assert read.target_prompt_logprobs is not None and read.target_prompt_logprobs.shape == [0, 2]
        assert read.prompt_alt_tokens is not None and read.prompt_alt_tokens.tokens.shape == [0, 2]


def test_older_clients_get_the_same_in_json() -> None:
    result = SampleResult(
        sequences=(SEQUENCE, SampledSequence(np.array([3], np.int32), floats(-2.0), "length")),
        prompt_logprobs=floats(np.nan, -1.0),
        topk_prompt_logprobs=topk([[0, 0], [5, 0]], [[-99999, -99999], [-1, -99999]]),
    )

    answer = orjson.loads(orjson.dumps(sample_result_json(encode_sample_result(result, request(2)))))

    assert answer == {
        "type": "sample",
        "sequences": [
            {"stop_reason": "stop", "tokens": [7, 9], "logprobs": [-0.5, -1.25]},
            {"stop_reason": "length", "tokens": [3], "logprobs": [-2.0]},
        ],
        "prompt_logprobs": [None, -1.0],
        "topk_prompt_logprobs": [None, [[5, -1.0]]],
    }


def test_json_says_nothing_of_what_was_not_asked() -> None:
    answer = sample_result_json(encode_sample_result(SampleResult((SEQUENCE,)), request()))

    assert answer.keys() == {"type", "sequences"}


def test_the_scores_of_a_prompt_are_read_back() -> None:
    scored = SampleResult((), np.array([np.nan, -1.5, -2], np.float32))
    asked = SampleRequest(np.array([1, 2, 3], np.int32), 1, SamplingParams(), prompt_logprobs=True)

    read = read_prompt_logprobs(encode_sample_result(scored, asked))

    assert read is not None and np.isnan(read[0]) and read[1:].tolist() == [-1.5, -2.0]
    assert read_prompt_logprobs(encode_sample_result(SampleResult(()), asked)) is None
