from __future__ import annotations

import contextlib
import json
from typing import Any

import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tinker._compat import model_dump
from tinker.types import ModelInput, SampleRequest, SamplingParams
from tinker.types._pydantic_types.tensor_data import TensorData

from chockstone.wire.codecs import samples
from chockstone.wire.codecs.sample_request import (
    MAX_SCHEMA_DEPTH,
    SampleHead,
    decode_constraint,
    decode_sample,
    limit_context,
    peek_sample,
)
from chockstone.wire.failures import BadRequest


def sdk_json(tokens: list[int] = [1, 2, 3], params: dict[str, Any] | None = None, **fields: Any) -> Any:  # noqa: B006
    """The body of asample as the SDK sends it: nulls dropped, defaults kept."""
    request = SampleRequest(
        prompt=ModelInput.from_ints(tokens),
        sampling_params=SamplingParams(**(params or {})),
        sampling_session_id="s:sample:0",
        seq_id=3,
        **fields,
    )
    return orjson.loads(orjson.dumps(model_dump(request, exclude_unset=False, exclude_none=True, mode="json")))


def test_the_sdk_s_plainest_request() -> None:
    body = sdk_json()

    head = SampleHead("s:sample:0", 3, base_model=None, model_path=None, num_samples=1, prompt_tokens=3)
    assert peek_sample(body) == head
    request = decode_sample(body)
    assert request.prompt.tolist() == [1, 2, 3] and request.prompt.dtype == "int32"
    assert request.params == samples.SamplingParams()
    assert (request.num_samples, request.prompt_logprobs, request.targets) == (1, False, None)


def test_everything_the_sdk_can_ask_for() -> None:
    params = {"max_tokens": 5, "seed": 2**63, "stop": ["\n", "END"], "temperature": 0, "top_k": 40, "top_p": 0.9}

    request = decode_sample(
        sdk_json(
            [5, 6, 7, 8],
            params,
            num_samples=7,
            prompt_logprobs=True,
            prompt_logprobs_last_n=3,
            topk_prompt_logprobs=2,
            topk_sample_logprobs=4,
            prompt_alt_tokens_k=1,
            record_stability_info=True,
        )
    )

    assert request.params == samples.SamplingParams(
        max_tokens=5,
        seed=2**63,
        stop_strings=("\n", "END"),
        temperature=0.0,
        top_k=40,
        top_p=0.9,
    )
    assert (request.num_samples, request.prompt_logprobs, request.prompt_logprobs_last_n) == (7, True, 3)
    assert (request.topk_prompt_logprobs, request.topk_sample_logprobs, request.prompt_alt_tokens_k) == (2, 4, 1)


@pytest.mark.parametrize(
    ("stop", "strings", "tokens", "stops_at_eos"),
    [
        (None, (), (), True),
        ([], (), (), False),
        ("a", ("a",), (), True),
        (["a", "b"], ("a", "b"), (), True),
        ([0, 151645], (), (0, 151645), True),
    ],
)
def test_all_forms_of_stop(stop: Any, strings: Any, tokens: Any, stops_at_eos: bool) -> None:
    params = decode_sample(sdk_json(params={"stop": stop})).params

    assert (params.stop_strings, params.stop_tokens, params.stops_at_eos) == (strings, tokens, stops_at_eos)


def test_the_most_likely_tokens_of_a_prompt_come_with_its_own_logprobs() -> None:
    assert decode_sample(sdk_json(topk_prompt_logprobs=2)).prompt_logprobs
    assert not decode_sample(sdk_json()).prompt_logprobs


@pytest.mark.parametrize(("max_tokens", "limit"), [(None, None), (5, None), (5, 8), (1, 3)])
def test_a_request_within_the_limit_is_not_changed(max_tokens: int | None, limit: int | None) -> None:
    request = decode_sample(sdk_json(params={"max_tokens": max_tokens}))

    assert limit_context(request, limit) is request


def test_without_max_tokens_a_request_ends_at_the_limit() -> None:
    assert limit_context(decode_sample(sdk_json()), 8).params.max_tokens == 5


@pytest.mark.parametrize(("max_tokens", "limit"), [(6, 8), (None, 3), (None, 2), (2, 3), (1, 2)])
def test_a_request_beyond_the_limit_is_refused(max_tokens: int | None, limit: int) -> None:
    with pytest.raises(BadRequest, match=f"does not fit the context of {limit}"):
        limit_context(decode_sample(sdk_json(params={"max_tokens": max_tokens})), limit)


def test_top_k_zero_is_off() -> None:
    assert decode_sample(sdk_json(params={"top_k": 0})).params.top_k == -1


def test_targets_may_be_dense() -> None:
    targets = torch.tensor([[4, -1], [5, 6]])

    request = decode_sample(sdk_json(target_prompt_logprobs=TensorData.from_torch(targets)))

    assert request.targets is not None and not request.targets.is_sparse
    assert request.targets.tokens.tolist() == targets.tolist()


def test_targets_may_be_sparse_and_what_is_not_listed_is_not_wanted() -> None:
    targets = torch.full((3, 8), -1)
    targets[0, 0], targets[2, 7] = 0, 9
    tensor = TensorData.from_torch_sparse(targets, pad_value=-1)
    assert tensor.sparse_crow_indices is not None

    request = decode_sample(sdk_json([1, 2, 3, 4], target_prompt_logprobs=tensor))

    assert request.targets is not None and request.targets.is_sparse
    assert request.targets.tokens.tolist() == targets.tolist()


def test_a_sample_may_name_a_model_instead_of_a_session() -> None:
    body = {**sdk_json(), "sampling_session_id": None, "base_model": "Qwen/Qwen3-8B"}

    assert peek_sample(body).base_model == "Qwen/Qwen3-8B"


TENSOR = {"dtype": "int64", "data": [1, 2], "shape": [2, 1]}
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt must be an object, not null"),
    ({"prompt": {"chunks": []}}, "prompt: there are no tokens"),
    ({"prompt": {"chunks": [{"type": "image", "data": ""}]}}, "prompt: chunk 0 is of type 'image'; this server takes"),
    ({"prompt": {"chunks": [{"tokens": [-1]}]}}, "tokens[0] must be an integer between 0 and 2147483647, not -1"),
    ({"num_samples": 0}, "num_samples must be an integer between 1 and 4096, not 0"),
    ({"num_samples": 4097}, "num_samples must be an integer between 1 and 4096, not 4097"),
    ({"num_samples": "2"}, "num_samples must be an integer between 1 and 4096, not '2'"),
    ({"prompt_logprobs": 1}, "prompt_logprobs must be true or false, not 1"),
    ({"prompt_logprobs_last_n": 1}, "prompt_logprobs_last_n applies to prompt_logprobs"),
    ({"prompt_logprobs": True, "prompt_logprobs_last_n": 3}, "of a prompt of 3 tokens only the last 2"),
    ({"prompt_logprobs": True, "prompt_logprobs_last_n": 0}, "prompt_logprobs_last_n must be an integer between 1"),
    ({"topk_prompt_logprobs": -1}, "topk_prompt_logprobs must be an integer between 0 and 1024, not -1"),
    ({"topk_sample_logprobs": 1025}, "topk_sample_logprobs must be an integer between 0 and 1024, not 1025"),
    ({"sampling_params": []}, "sampling_params must be an object, not a list"),
    ({"sampling_params": {"max_tokens": 0}}, "max_tokens must be an integer between 1 and 2147483647, not 0"),
    ({"sampling_params": {"max_tokens": 1.5}}, "max_tokens must be an integer"),
    ({"sampling_params": {"seed": 2**64}}, "seed must be an integer"),
    ({"sampling_params": {"temperature": -0.1}}, "temperature must not be negative, not -0.1"),
    ({"sampling_params": {"temperature": 1e-320}}, "temperature must be 0 or at least 1e-20, not 1e-320"),
    ({"sampling_params": {"temperature": float("inf")}}, "temperature must be finite, not inf"),
    ({"sampling_params": {"temperature": float("nan")}}, "temperature must be finite, not nan"),
    ({"sampling_params": {"temperature": True}}, "temperature must be a number, not true"),
    ({"sampling_params": {"top_k": -2}}, "top_k must be an integer between -1"),
    ({"sampling_params": {"top_p": 0}}, "top_p must be above 0 and at most 1, not 0.0"),
    ({"sampling_params": {"top_p": 1.01}}, "top_p must be above 0 and at most 1"),
    ({"sampling_params": {"stop": 3}}, "stop must be a string, a list of strings or a list of token ids, not 3"),
    ({"sampling_params": {"stop": ""}}, "stop[0] must not be empty"),
    ({"sampling_params": {"stop": ["a", 1]}}, "stop[1] must be a string, not 1"),
    ({"sampling_params": {"stop": [-5]}}, "stop[0] must be an integer between 0"),
    ({"sampling_params": {"stop": [None]}}, "stop[0] must be an integer"),
    ({"sampling_params": {"stop": [1] * 257}}, "stop has 257 entries, more than 256"),
    ({"sampling_params": {"stop": ["x" * 10_001]}}, "stop[0] has 10001 characters"),
    ({"target_prompt_logprobs": {**TENSOR, "dtype": "float32"}}, "dtype must be 'int64', the tokens to score"),
    ({"target_prompt_logprobs": {**TENSOR, "shape": [2]}}, "shape must be [2, K]"),
    ({"target_prompt_logprobs": {**TENSOR, "shape": None}}, "shape must be [2, K]"),
    ({"target_prompt_logprobs": {**TENSOR, "shape": [1, 2]}}, "shape must be [2, K]"),
    ({"target_prompt_logprobs": {**TENSOR, "data": [1, -2]}}, "between 0 and 2147483647, or -1 for none"),
    ({"target_prompt_logprobs": {**TENSOR, "data": [1]}}, "shape [2, 1] has 2 elements"),
    (
        {
            "target_prompt_logprobs": {
                "dtype": "int64",
                "data": [],
                "shape": [2, 2**40],
                "sparse_crow_indices": [0, 0, 0],
                "sparse_col_indices": [],
            }
        },
        "target_prompt_logprobs: spread out",
    ),
]


@pytest.mark.parametrize(("change", "words"), REFUSALS, ids=[words for _, words in REFUSALS])
def test_what_cannot_be_meant_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        decode_sample({**sdk_json(), **change})

    assert words in str(refusal.value)


def test_an_answer_that_would_be_too_large_is_refused() -> None:
    with pytest.raises(BadRequest, match="topk_prompt_logprobs is 1024 over 20000 positions"):
        decode_sample({**sdk_json([1] * 20_000), "topk_prompt_logprobs": 1024})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seq_id": None}, "seq_id is missing"),
        ({"seq_id": -1}, "seq_id must be an integer between 0 and 9223372036854775807, not -1"),
        ({"seq_id": 2**63}, "seq_id must be an integer"),
        ({"sampling_session_id": None}, "sampling_session_id is missing"),
        ({"sampling_session_id": "a\0"}, "sampling_session_id must have at most 1000 characters and no NUL"),
        ({"sampling_session_id": 4}, "sampling_session_id must be a string, not 4"),
        ({"num_samples": 0}, "num_samples must be"),
    ],
)
def test_a_bad_head_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        peek_sample({**sdk_json(), **change})


def test_a_clone_s_seq_id_needs_sixty_bits() -> None:
    assert peek_sample({**sdk_json(), "seq_id": 10**18 + 4}).seq_id == 10**18 + 4


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(0).map(lambda _: 10**5000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(sorted({name for change, _ in REFUSALS for name in change} | {"seq_id", "base_model"}))
PARAMS = st.sampled_from(["max_tokens", "seed", "stop", "temperature", "top_k", "top_p"])
TENSOR_FIELDS = st.sampled_from(["dtype", "data", "shape", "sparse_crow_indices", "sparse_col_indices"])


@settings(derandomize=True, deadline=None, max_examples=250)
@given(
    st.dictionaries(FIELDS, JSON, max_size=2),
    st.dictionaries(PARAMS, JSON, max_size=2),
    st.dictionaries(TENSOR_FIELDS, JSON, max_size=2),
)
def test_any_json_gives_a_request_or_a_refusal(
    fields: dict[str, Any], params: dict[str, Any], tensor: dict[str, Any]
) -> None:
    body = {**sdk_json(), "sampling_params": params, "target_prompt_logprobs": {**TENSOR, **tensor}, **fields}

    for read in (peek_sample, decode_sample):
        with contextlib.suppress(BadRequest):
            read(body)


@pytest.mark.parametrize("body", [None, [], "x", 1, {}])
def test_any_body_gives_a_refusal(body: Any) -> None:
    for read in (peek_sample, decode_sample):
        with pytest.raises(BadRequest):
            read(body)


SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"a": schema}
    return schema


def test_a_schema_is_kept_as_text_with_what_surrounds_it() -> None:
    read = decode_constraint({"json_schema": SCHEMA, "prefix": "<tool_call>\n", "suffix": None}, "constraint")

    assert read is not None and json.loads(read.schema) == SCHEMA
    assert (read.prefix, read.suffix) == ("<tool_call>\n", "")


def test_a_mark_begins_the_prefix() -> None:
    value = {"json_object": True, "prefix": "<call>\n", "suffix": "</call>", "mark": "<call>", "bare": True}
    read = decode_constraint(value, "constraint")

    assert read is not None
    assert (read.mark, read.prefix, read.is_bare) == ("<call>", "<call>\n", True)


@pytest.mark.parametrize(
    ("max_tokens", "limit", "fits"),
    [(None, 4, True), (None, 3, False), (5, 8, True), (5, 7, False), (1, 3, True), (1, 2, False), ("5", 7, True)],
)
def test_a_head_knows_whether_a_context_can_hold_it(max_tokens: object, limit: int, fits: bool) -> None:
    """What is wrong for other reasons is refused later, by them."""
    head = peek_sample({**sdk_json(), "sampling_params": {"max_tokens": max_tokens}})

    if fits:
        head.check_context(limit)
        return
    with pytest.raises(BadRequest, match=rf"3 prompt tokens \+ \d+ max_tokens > {limit}; shorten the prompt"):
        head.check_context(limit)


@pytest.mark.parametrize("prompt", [None, 3, [], {}, {"chunks": 3}, {"chunks": [3, {}, {"tokens": 3}]}])
def test_a_wrong_prompt_has_any_number_of_tokens(prompt: object) -> None:
    assert peek_sample({**sdk_json(), "prompt": prompt, "sampling_params": 3}).prompt_tokens == 0


def test_any_object_is_a_schema_too() -> None:
    assert decode_constraint({"json_object": True}, "constraint") == samples.Constraint('{"type":"object"}')


def test_none_is_no_constraint() -> None:
    assert decode_constraint(None, "constraint") is None


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([], "constraint must be an object"),
        ({}, "either json_object or json_schema"),
        ({"json_object": True, "json_schema": {}}, "either json_object or json_schema"),
        ({"json_object": False}, "json_object must be true"),
        ({"json_schema": True}, "json_schema must be an object"),
        ({"json_schema": {}, "regex": "a"}, "unknown field 'regex'"),
        ({"json_object": True, "prefix": 3}, "prefix must be a string"),
        ({"json_object": True, "suffix": "x" * 1001}, "suffix has 1001 characters"),
        ({"json_object": True, "mark": "<call>"}, "prefix must begin with constraint.mark"),
        ({"json_object": True, "mark": "b", "prefix": "ab"}, "prefix must begin with constraint.mark"),
        ({"json_object": True, "bare": True}, "bare needs constraint.mark"),
        ({"json_object": True, "mark": "a", "prefix": "a", "bare": 1}, "bare must be true or false"),
        ({"json_schema": {"enum": ["x" * 1000] * 200}}, "characters, more than"),
        ({"json_schema": {"enum": list(range(10_000))}}, "more than 10000 values"),
        ({"json_schema": {"properties": {f"p{i}": {} for i in range(1001)}}}, "1001 properties"),
        ({"json_schema": nested(64)}, "64 levels deep"),
        ({"json_schema": nested(100_000)}, "64 levels deep"),
    ],
)
def test_others_are_refused(value: object, complaint: str) -> None:
    with pytest.raises(BadRequest, match=complaint):
        decode_constraint(value, "constraint")


def test_a_request_is_refused_before_it_is_recorded() -> None:
    body = {
        "base_model": "tiny",
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1]}]},
        "constraint": {"json_schema": nested(MAX_SCHEMA_DEPTH)},
    }

    for read in (peek_sample, decode_sample):
        with pytest.raises(BadRequest, match="levels deep"):
            read(body)


def test_a_request_has_its_constraint() -> None:
    body = {
        "base_model": "tiny",
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1]}]},
        "constraint": {"json_object": True},
    }

    assert decode_sample(body).constraint == samples.Constraint('{"type":"object"}')
