"""Malformed, oversized and senseless requests: each gets a clear refusal or fails alone, and the server goes on."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import zstandard

from chockstone.wire.codecs import messages_pb2 as pb
from hostile.strangers import (
    PROTOBUF,
    TOKENS,
    Stranger,
    check_failure,
    check_refusal,
    check_unhappy,
    retrieve,
    tensor,
)
from support.live import LiveServer

CONTEXT = 8192  # of the made models


@pytest.fixture
def stranger(http: httpx.Client) -> Iterator[Stranger]:
    """A run before and after: a request that goes wrong changes nothing that a later one sees."""
    stranger = Stranger.meet(http)
    before = stranger.loss()
    yield stranger
    assert stranger.loss() == before
    http.post(f"sessions/{stranger.session_id}/finish", json={"reason": {"type": "success"}, "detail": None})


JSON_ROUTES = [
    "client/config",
    "create_session",
    "session_heartbeat",
    "create_model",
    "get_info",
    "unload_model",
    "optim_step",
    "create_custom_loss",
    "save_weights",
    "save_weights_for_sampler",
    "save_weights_external",
    "copy_weights",
    "load_weights",
    "weights_info",
    "create_sampling_session",
    "join_sampling_session",
    "asample",
    "retrieve_future",
    "retrieve_futures",
    "cancel_future",
    "telemetry",
    "sessions/search",
    "sessions/x/finish",
    "sweep",
    "trash/1/restore",
    "forward_backward",
]

BODIES = {
    "empty": b"",
    "a null": b"null",
    "a list": b"[]",
    "a string": b'"hello"',
    "a number": b"1e999",
    "not json": b"{'a': 1}",
    "not utf-8": b'{"session_id": "\xff\xfe"}',
    "unfinished": b'{"session_id": ',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "a huge integer": b'{"session_id": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("route", JSON_ROUTES)
def test_what_is_no_json_object_is_refused(http: httpx.Client, route: str) -> None:
    for name, body in BODIES.items():
        answer = http.post(route, content=body, headers={"Content-Type": "application/json"})

        assert check_refusal(answer), f"{route} took {name}"


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "image/png", "application/x-protobuf", "???"])
def test_json_under_another_content_type_is_refused(http: httpx.Client, kind: str) -> None:
    for route in ("create_model", "optim_step", "forward_backward", "retrieve_future"):
        check_refusal(http.post(route, content=b'{"a": 1}', headers={"Content-Type": kind}))


def test_a_wrong_method_or_an_unknown_route_is_refused(http: httpx.Client) -> None:
    for answer in (http.get("create_session"), http.delete("asample"), http.post("no/such/route"), http.put("")):
        check_refusal(answer)


@pytest.mark.parametrize(
    "body",
    [
        {"model_id": "x", "seq_id": -1, "adam_params": {}},
        {"model_id": "x", "seq_id": 2**31, "adam_params": {}},
        {"model_id": "x", "seq_id": 10**30, "adam_params": {}},
        {"model_id": "x", "seq_id": 1.5, "adam_params": {}},
        {"model_id": "x", "seq_id": True, "adam_params": {}},
        {"model_id": "x", "seq_id": "1", "adam_params": {}},
        {"model_id": "x", "seq_id": 1, "adam_params": {}, "optimizer_params": {"type": "adamw"}},
        {"model_id": "x", "seq_id": 1, "adam_params": []},
        {"model_id": "", "seq_id": 1, "adam_params": {}},
        {"model_id": "x" * 10_000, "seq_id": 1, "adam_params": {}},
        {"model_id": ["x"], "seq_id": 1, "adam_params": {}},
        {"model_id": "no such run", "seq_id": 1, "adam_params": {}},
        {"model_id": "../../etc/passwd", "seq_id": 1, "adam_params": {}},
        {"model_id": "Ω\u0000\u202e'; drop table runs; --", "seq_id": 1, "adam_params": {}},
    ],
)
def test_a_step_that_cannot_be_meant_is_refused(http: httpx.Client, body: dict[str, Any]) -> None:
    check_refusal(http.post("optim_step", json=body))


@pytest.mark.parametrize(
    "value",
    [
        "NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "null", '"fast"', "[]", '"\\ud800"', "-1",
        '{"a":' * 600 + "1" + "}" * 600,
    ],
    ids=lambda value: value[:12],
)  # fmt: skip
@pytest.mark.parametrize("name", ["learning_rate", "beta1", "grad_clip_norm"])
def test_a_senseless_number_for_the_optimizer_fails_alone(stranger: Stranger, name: str, value: str) -> None:
    body = (
        f'{{"model_id": "{stranger.run_id}", "seq_id": {stranger.next_seq_id()}, "adam_params": {{"{name}": {value}}}}}'
    )

    answer = stranger.http.post("optim_step", content=body, headers={"Content-Type": "application/json"})

    assert check_unhappy(stranger.http, answer)


@pytest.mark.parametrize(
    "wish",
    [
        {"base_model": "no/such-model"},
        {"base_model": "../tiny-qwen3"},
        {"base_model": ""},
        {"base_model": 3},
        {"session_id": "nobody's"},
        {"session_id": "é/ü"},
        {"model_seq_id": -1},
        {"model_seq_id": 10**40},
        {"lora_config": {"rank": -1}},
        {"lora_config": {"rank": 10**9}},
        {"lora_config": {"rank": 4, "seed": 10**30}},
        {"lora_config": {"rank": 4, "train_attn": False, "train_mlp": False, "train_unembed": False}},
        {"lora_config": "large"},
        {"optimizer_config": {"type": "no-such-optimizer"}},
        {"optimizer_config": {"type": "adamw", "x": 10**400}},
        {"user_metadata": {"a": 10**400}},
        {"user_metadata": {"a": float("nan")}},
        {"user_metadata": {"k" * 300_000: "v"}},
    ],
    ids=lambda wish: str(wish)[:50],
)
def test_a_run_that_cannot_be_made_is_refused(stranger: Stranger, wish: dict[str, Any]) -> None:
    body = {"session_id": stranger.session_id, "model_seq_id": 7, "base_model": "tiny-qwen3"} | wish

    answer = stranger.http.post("create_model", content=json.dumps(body), headers={"Content-Type": "application/json"})

    if "x" in wish.get("optimizer_config", {}) or isinstance(wish.get("user_metadata", {}).get("a"), float):
        assert answer.status_code < 500  # what it means nothing by may be kept as it is
    else:
        assert check_unhappy(stranger.http, answer)


def test_ids_with_slashes_unicode_and_control_characters_are_not_found(http: httpx.Client) -> None:
    for name in ("a%2Fb", "%2e%2e%2f%2e%2e", "%00", "%ff%fe", "Ω☃", "a:train:0", "%F0%9F%92%A5", "x" * 3000, "%0d%0a"):
        for route in ("sessions/{}", "samplers/{}", "training_runs/{}"):
            check_refusal(http.get(route.format(name)))
        check_refusal(http.post(f"sessions/{name}/finish", json={"reason": {"type": "success"}}))
        check_refusal(http.put(f"sessions/{name}/project", json={"project_id": "p"}))


def test_senseless_queries_are_refused(http: httpx.Client) -> None:
    for query in ("limit=-1", "limit=ten", "limit=1e9", "offset=-1", f"offset={10**30}", "access_scope=all"):
        for route in ("sessions", "training_runs", "checkpoints"):
            if route != "checkpoints" or not query.startswith("access_scope"):
                check_refusal(http.get(f"{route}?{query}"))


@pytest.mark.parametrize(
    "path",
    [
        "tinker://nobody/weights/x", "tinker://a/b", "tinker://a/b/c/d", "file:///etc/passwd", "", "tinker://../weights/x",
        "tinker://a/weights/../../x", "tinker://a/sampler_weights/\u0000", "tinker://é/weights/ü", "x" * 100_000,
    ],
    ids=lambda path: path[:20],
)  # fmt: skip
def test_paths_that_lead_nowhere_are_refused(stranger: Stranger, path: str) -> None:
    http = stranger.http
    load = {"model_id": stranger.run_id, "seq_id": stranger.next_seq_id(), "path": path, "optimizer": True}
    open_session = {"session_id": stranger.session_id, "sampling_session_seq_id": 5, "model_path": path}

    check_refusal(http.post("load_weights", json=load))
    check_refusal(http.post("weights_info", json={"tinker_path": path}))
    check_refusal(http.post("create_sampling_session", json=open_session))
    check_refusal(http.post("copy_weights", json={"source_path": path, "destination_project_id": "p"}))
    check_refusal(http.post("asample", json={"prompt": {"chunks": []}, "model_path": path}))


@pytest.mark.parametrize("name", ["", "a/b", "..", "é", "a b", "x" * 300, "\u0000", 5, None, "../../escape", "latest"])
def test_names_that_no_checkpoint_may_have_are_refused(stranger: Stranger, name: object) -> None:
    for route in ("save_weights", "save_weights_for_sampler", "save_weights_external"):
        wish = {"model_id": stranger.run_id, "seq_id": stranger.next_seq_id(), "path": name}
        check_refusal(stranger.http.post(route, json=wish))


Change = Callable[[pb.ForwardBackwardRequest], None]


def _tokens(tokens: list[int]) -> Change:
    def change(message: pb.ForwardBackwardRequest) -> None:
        message.data[0].model_input[0].encoded_text.tokens = np.asarray(tokens, "<i4").tobytes()

    return change


def _input(name: str, value: pb.Tensor) -> Change:
    return lambda message: message.data[0].loss_fn_inputs[name].CopyFrom(value)


def _sparse(shape: list[int], crow: list[int], col: list[int], values: list[int] | None = None) -> pb.Tensor:
    sparse = pb.SparseCsr(
        values=np.asarray(col if values is None else values, "<i8").tobytes(),
        crow_indices=np.asarray(crow, "<i8").tobytes(),
        col_indices=np.asarray(col, "<i8").tobytes(),
    )
    return pb.Tensor(sparse_csr=sparse, dtype=pb.DTYPE_INT64, shape=shape)


N = len(TOKENS) - 1
PASSES: dict[str, Change] = {
    "no data": lambda message: message.ClearField("data"),
    "an empty datum": lambda message: message.data[0].Clear(),
    "no tokens": _tokens([]),
    "a negative token": _tokens([5] * (N - 1) + [-7]),
    "a token outside the vocabulary": _tokens([5] * (N - 1) + [10**9]),
    "a prompt longer than the context": _tokens([5] * (CONTEXT * 3)),
    "half a token": lambda message: setattr(message.data[0].model_input[0].encoded_text, "tokens", b"\x01\x02\x03"),
    "an image": lambda message: setattr(message.data[0].model_input.add().image, "data", b"x"),
    "an empty chunk": lambda message: message.data[0].model_input.add(),
    "an unknown loss": lambda message: setattr(message, "loss_fn", "no_such_loss"),
    "no loss": lambda message: setattr(message, "loss_fn", ""),
    "a loss that nobody uploaded": lambda message: setattr(message, "loss_fn", "custom"),
    "an option that is nan": lambda message: setattr(message.loss_fn_config_v2["beta"], "number", float("nan")),
    "no targets": lambda message: message.data[0].loss_fn_inputs.pop("target_tokens"),
    "a target outside the vocabulary": _input("target_tokens", tensor([10**12] * N, "<i8")),
    "a negative target": _input("target_tokens", tensor([-1] * N, "<i8")),
    "a target too few": _input("target_tokens", tensor(TOKENS[2:], "<i8")),
    "targets of three axes": _input("target_tokens", tensor([[[1]]] * N, "<i8")),
    "float targets": _input("target_tokens", tensor([1.0] * N, "<f4")),
    "nan weights": _input("weights", tensor([float("nan")] * N, "<f4")),
    "infinite weights": _input("weights", tensor([float("inf")] * N, "<f4")),
    "a weight too many": _input("weights", tensor([1.0] * (N + 1), "<f4")),
    "a shape that does not fit its data": _input("weights", tensor([1.0] * N, "<f4", [N + 1])),
    "a negative shape": _input("weights", tensor([1.0] * N, "<f4", [-N])),
    "a shape that overflows": _input("weights", tensor([1.0] * N, "<f4", [2**32, 2**32, 2**62])),
    "a shape of many axes": _input("weights", tensor([1.0] * N, "<f4", [1] * 1000)),
    "no dtype": _input("weights", pb.Tensor(dense=b"\0" * 4 * N, shape=[N])),
    "no encoding": _input("weights", pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=[N])),
    "half a number": _input("weights", pb.Tensor(dense=b"\0" * 7, dtype=pb.DTYPE_FLOAT32, shape=[N])),
    "a huge sparse matrix": _input("target_tokens", _sparse([N, 2**50], [0] * (N + 1), [])),
    "a huge and tall sparse matrix": _input("target_tokens", _sparse([2**55, 2], [0], [])),
    "a sparse matrix past the memory of any machine": _input("target_tokens", _sparse([N, 2**28], [0] * (N + 1), [])),
    "sparse rows that fall": _input("target_tokens", _sparse([N, 4], [0, 3] + [1] * (N - 1), [0])),
    "sparse columns outside": _input("target_tokens", _sparse([N, 4], [0] + [1] * N, [9])),
    "negative sparse columns": _input("target_tokens", _sparse([N, 4], [0] + [1] * N, [-1])),
    "sparse columns listed twice": _input("target_tokens", _sparse([N, 4], [0] + [2] * N, [1, 1])),
    "no sparse rows at all": _input("target_tokens", _sparse([N, 4], [], [])),
}  # fmt: skip


def test_a_pass_that_makes_no_sense_fails_alone_and_says_why(stranger: Stranger) -> None:
    for name, change in PASSES.items():
        message = stranger.pass_message()
        message.forward_only = False  # a gradient left behind would be seen
        change(message)

        assert check_unhappy(stranger.http, stranger.send(message)), name

    step = {"model_id": stranger.run_id, "seq_id": stranger.next_seq_id(), "adam_params": {"learning_rate": 1.0}}
    accepted = stranger.http.post("optim_step", json=step)
    assert "metrics" in retrieve(stranger.http, accepted.json()["request_id"]).json()  # and changed nothing


def test_a_pass_for_nobody_s_run_is_refused(stranger: Stranger) -> None:
    for run_id in ("", "x", "é/☃", "a" * 100_000, f"{stranger.session_id}:train:99", "a:train:-1", "\0"):
        message = stranger.pass_message()
        message.model_id = run_id

        check_refusal(stranger.send(message))


def test_numbers_that_no_request_may_have_are_refused(stranger: Stranger) -> None:
    for seq_id in (0, -1, -(2**31)):
        message = stranger.pass_message()
        message.seq_id = seq_id

        check_refusal(stranger.send(message))


def test_damaged_protobuf_is_refused_or_fails_alone(stranger: Stranger) -> None:
    random_bytes = random.Random(7)
    for attempt in range(120):
        body = bytearray(stranger.pass_message().SerializeToString())
        for _ in range(random_bytes.randint(1, 6)):
            body[random_bytes.randrange(len(body))] = random_bytes.randrange(256)
        cut = random_bytes.randrange(1, len(body)) if attempt % 3 == 0 else len(body)

        answer = stranger.http.post("forward_backward", content=bytes(body[:cut]), headers=PROTOBUF)

        if answer.status_code != 200:
            check_refusal(answer)
            continue
        result = retrieve(stranger.http, answer.json()["request_id"])
        assert result.status_code == 200
        is_result = result.headers["content-type"] == PROTOBUF["Content-Type"]
        assert is_result or result.json()["category"] == "user", result.text


@pytest.mark.parametrize(
    "body", [b"\xff" * 100, b"\x0a", b"\x08", b"garbage " * 1000, b"\x1b" * 10_000, b"\x1a\xff\xff\xff\xff\x0f"]
)
def test_what_is_no_protobuf_is_refused(http: httpx.Client, body: bytes) -> None:
    assert check_refusal(http.post("forward_backward", content=body, headers=PROTOBUF))


def test_a_swarm_of_empty_messages_is_refused_without_being_built(http: httpx.Client) -> None:
    body = b"\x0a\x01x\x10\x01" + b"\x1a\x00" * (8 << 20)  # sixteen million bytes: eight million datums

    assert "fields" in check_refusal(http.post("forward_backward", content=body, headers=PROTOBUF))


def _frame(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def _claiming(size_bytes: int) -> bytes:
    """A frame whose header promises this many bytes; there is one, and then nothing."""
    magic, single_segment_with_8_byte_size = b"\x28\xb5\x2f\xfd", b"\xe0"
    return magic + single_segment_with_8_byte_size + size_bytes.to_bytes(8, "little") + b"\x01\x00\x00"


def _without_size(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(content)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"garbage", b"\x28\xb5\x2f\xfd", _frame(b"x" * 1000)[:-3], _frame(b"x" * 1000) + b"more", _frame(b""),
        _claiming(2**62), _claiming(600 << 20), _claiming(1 << 20), _without_size(b"x" * 1000),
        _frame(b"") * 3, _frame(_frame(b"\0" * (1 << 20))),
    ],
    ids=range(12),
)  # fmt: skip
def test_zstd_garbage_and_bombs_are_refused(http: httpx.Client, body: bytes) -> None:
    assert check_refusal(http.post("forward_backward", content=body, headers=PROTOBUF | {"Content-Encoding": "zstd"}))


def test_a_zstd_bomb_is_refused_before_it_goes_off(http: httpx.Client) -> None:
    bomb = _frame(bytes(1 << 20) * 768)  # 768 MiB in less than 100 KB

    assert len(bomb) < 100_000
    assert "unpacks to" in check_refusal(
        http.post("forward_backward", content=bomb, headers=PROTOBUF | {"Content-Encoding": "zstd"})
    )


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd, zstd", "☃".encode().decode("latin-1"), "x" * 1000])
def test_other_encodings_are_refused(http: httpx.Client, encoding: str) -> None:
    for route in ("forward_backward", "asample"):
        check_refusal(http.post(route, content=b"x", headers={"Content-Encoding": encoding.encode("latin-1")}))


PROMPT = {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}
SAMPLES: dict[str, dict[str, Any]] = {
    "no prompt": {"prompt": None},
    "an empty prompt": {"prompt": {"chunks": []}},
    "a prompt of no chunk": {"prompt": {"chunks": "abc"}},
    "a token outside the vocabulary": {"prompt": {"chunks": [{"tokens": [5, 10**9]}]}},
    "a token of many bits": {"prompt": {"chunks": [{"tokens": [2**63 - 1]}]}},
    "a negative token": {"prompt": {"chunks": [{"tokens": [-1]}]}},
    "a token that is none": {"prompt": {"chunks": [{"tokens": [1.5, "a", None]}]}},
    "an image": {"prompt": {"chunks": [{"type": "image", "data": "aGk=", "format": "png"}]}},
    "a pointer": {"prompt": {"chunks": [{"type": "image_asset_pointer", "location": "file:///etc/passwd"}]}},
    "a prompt longer than the context": {"prompt": {"chunks": [{"tokens": [5] * (CONTEXT + 1)}]}},
    "a prompt of a million": {"prompt": {"chunks": [{"tokens": [5] * 1_000_000}]}},
    "no samples": {"num_samples": 0},
    "fewer than no samples": {"num_samples": -3},
    "too many samples": {"num_samples": 10**9},
    "half a sample": {"num_samples": 0.5},
    "more tokens than the context": {"sampling_params": {"max_tokens": CONTEXT}},
    "no tokens": {"sampling_params": {"max_tokens": 0}},
    "fewer than no tokens": {"sampling_params": {"max_tokens": -1}},
    "a negative temperature": {"sampling_params": {"max_tokens": 1, "temperature": -1}},
    "a temperature of text": {"sampling_params": {"max_tokens": 1, "temperature": "hot"}},
    "a top_p of nothing": {"sampling_params": {"max_tokens": 1, "top_p": 0}},
    "a top_p of more than all": {"sampling_params": {"max_tokens": 1, "top_p": 1.1}},
    "a top_k below none": {"sampling_params": {"max_tokens": 1, "top_k": -7}},
    "a seed of many bits": {"sampling_params": {"max_tokens": 1, "seed": 2**64}},
    "an empty stop": {"sampling_params": {"max_tokens": 1, "stop": ""}},
    "mixed stops": {"sampling_params": {"max_tokens": 1, "stop": ["a", 1]}},
    "a stop outside the vocabulary": {"sampling_params": {"max_tokens": 1, "stop": [10**8]}},
    "too many stops": {"sampling_params": {"max_tokens": 1, "stop": [1] * 100_000}},
    "a stop of a million": {"sampling_params": {"max_tokens": 1, "stop": "a" * 1_000_000}},
    "params of text": {"sampling_params": "fast"},
    "too many alternatives": {"topk_prompt_logprobs": 10**6},
    "alternatives below none": {"topk_sample_logprobs": -1},
    "more draws than may be": {"prompt_alt_tokens_k": 10**6},
    "a flag of text": {"prompt_logprobs": "yes"},
    "a suffix of nothing": {"prompt_logprobs": True, "prompt_logprobs_last_n": 0},
    "a suffix longer than the prompt": {"prompt_logprobs": True, "prompt_logprobs_last_n": 10**6},
    "a suffix of what was not asked": {"prompt_logprobs_last_n": 3},
    "targets of too few rows": {"target_prompt_logprobs": {"dtype": "int64", "data": [1], "shape": [1, 1]}},
    "targets of floats": {"target_prompt_logprobs": {"dtype": "float32", "data": [1.0] * N, "shape": [N, 1]}},
    "targets of no word": {"target_prompt_logprobs": {"dtype": "int64", "data": [10**9] * N, "shape": [N, 1]}},
    "targets of huge width": {
        "target_prompt_logprobs": {
            "dtype": "int64", "data": [], "shape": [N, 2**40],
            "sparse_crow_indices": [0] * (N + 1), "sparse_col_indices": [],
        },
    },
    "targets with a broken index": {
        "target_prompt_logprobs": {
            "dtype": "int64", "data": [1], "shape": [N, 4], "sparse_crow_indices": [0, 5], "sparse_col_indices": [0],
        },
    },
}  # fmt: skip


def test_a_sample_that_makes_no_sense_fails_alone_and_says_why(stranger: Stranger) -> None:
    sampler = stranger.open_sampler()
    for number, (name, wish) in enumerate(SAMPLES.items()):
        body = {
            "sampling_session_id": sampler,
            "seq_id": number,
            "prompt": PROMPT,
            "sampling_params": {"max_tokens": 1},
        }

        assert check_unhappy(stranger.http, stranger.http.post("asample", json=body | wish)), name


def test_nan_among_sampling_params_is_refused(stranger: Stranger) -> None:
    sampler = stranger.open_sampler()
    for number, value in enumerate(("NaN", "Infinity", "1e999")):
        body = (
            f'{{"sampling_session_id": "{sampler}", "seq_id": {number}, "prompt": {json.dumps(PROMPT)}, '
            f'"sampling_params": {{"max_tokens": 1, "temperature": {value}}}}}'
        )

        assert check_unhappy(stranger.http, stranger.http.post("asample", content=body))


def test_samples_of_nobody_s_sampler_are_refused(http: httpx.Client) -> None:
    for wish in (
        {},
        {"sampling_session_id": "nobody", "seq_id": 0},
        {"sampling_session_id": "nobody"},
        {"sampling_session_id": "é/☃", "seq_id": 0},
        {"sampling_session_id": "x" * 100_000, "seq_id": 0},
        {"sampling_session_id": "nobody", "seq_id": -1},
        {"sampling_session_id": "nobody", "seq_id": 2**63},
        {"base_model": "no/such-model"},
    ):
        check_refusal(http.post("asample", json={"prompt": PROMPT} | wish))
    check_refusal(http.post("join_sampling_session", json={"sampling_session_id": "nobody"}))
    target = {"type": "sampling_session", "sampling_session_id": "nobody", "cloned_sampler_id": 0}
    check_refusal(http.post("retrieve_futures", json={"target": target, "prev_cursor": 0}))


@pytest.mark.parametrize("request_id", ["", "x", "0-0-0", "é/☃", "x" * 100_000, "\0", 5, None, ["a"], "-" * 200])
def test_ids_that_no_request_ever_had_are_refused(http: httpx.Client, request_id: object) -> None:
    check_refusal(http.post("retrieve_future", json={"request_id": request_id}))


def test_an_uploaded_loss_that_cannot_be_one_is_refused(stranger: Stranger) -> None:
    def graph(*nodes: dict[str, Any]) -> dict[str, Any]:
        return {"format": 1, "nodes": list(nodes)}

    call = {"op": "call_function", "name": "c", "args": [], "kwargs": {}}
    deep: object = 1
    for _ in range(300):
        deep = {"tuple": [deep]}
    inputs = [{"name": "logprobs", "rank": 1}]
    wishes: list[dict[str, Any]] = [
        {"graph": {}},
        {"graph": {"format": 99, "nodes": []}},
        {"graph": graph()},
        {"graph": graph({"op": "output"})},
        {"graph": graph(call | {"target": "os.system", "args": ["id"]})},
        {"graph": graph(call | {"target": "builtins.eval", "args": ["1"]})},
        {"graph": graph(call | {"target": "torch.load", "args": ["x"]})},
        {"graph": graph(call | {"target": "torch.ones", "args": [[10**9, 10**9]]})},
        {"graph": graph(call | {"target": "operator.mul", "args": [deep, deep]})},
        {"graph": graph(call | {"target": "operator.mul", "args": [{"ref": "nobody"}, 2]})},
        {"graph": graph(call | {"target": "operator.mul", "args": [10**400, 2]})},
        {"graph": graph(call | {"target": "operator.mul", "args": ["\ud800", 2]})},
        {"graph": graph(call), "inputs": []},
        {"graph": graph(call), "inputs": inputs * 100},
        {"graph": graph(call), "inputs": [{"name": "x", "rank": 99}]},
    ]
    for number, wish in enumerate(wishes):
        body = {"session_id": stranger.session_id, "custom_loss_seq_id": number, "name": "l", "inputs": inputs} | wish

        answer = stranger.http.post(
            "create_custom_loss", content=json.dumps(body), headers={"Content-Type": "application/json"}
        )

        assert check_unhappy(stranger.http, answer), wish


def _token(header: object, claims: object) -> str:
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (header, claims))
    return ".".join((*parts, "c2ln"))


def _deep_token() -> str:
    text = '{"alg": ' + "[" * 5000 + "]" * 5000 + "}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=") + ".e30.c2ln"


@pytest.mark.parametrize(
    "key",
    [
        None, "", "tml", "sk-123", "Bearer tml-local", "eyJ", "eyJ.eyJ.eyJ", "eyJ" + "A" * 20_000,
        _token({"alg": "none", "typ": "JWT"}, {"sub": "local", "exp": 10**10, "iss": "chockstone"}),
        _token({"alg": "HS256"}, {"sub": "local", "exp": 10**10, "iss": "chockstone"}),
        _token({"alg": "HS256", "crit": ["x"]}, {"sub": "local"}), _token({"alg": 5}, []), _deep_token(), "\xff\xfe",
    ],
    ids=range(14),
)  # fmt: skip
def test_who_is_nobody_gets_401(live: LiveServer, key: str | None) -> None:
    headers = {} if key is None else {"X-API-Key": key.encode("latin-1")}
    offset = len(live.log())
    with httpx.Client(base_url=f"{live.url}/api/v1/", headers=headers, trust_env=False) as nobody:
        for answer in (
            nobody.get("get_server_capabilities"),
            nobody.post("create_session", json={"sdk_version": "1"}),
            nobody.post("forward_backward", content=b"\xff", headers=PROTOBUF),
            nobody.post("retrieve_future", json={"request_id": "x"}),
            nobody.get("training_runs"),
        ):
            assert answer.status_code == 401
            check_refusal(answer)
        assert nobody.get("healthz").status_code == 200
    assert "Traceback" not in live.log()[offset:]


def test_a_body_over_the_limit_gets_413(start_server: Callable[..., LiveServer]) -> None:
    server = start_server("--max-body-bytes=100000")
    large = b'{"sdk_version": "' + b"x" * 200_000 + b'"}'

    def in_pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * 10_000

    with server.http() as http:
        stranger = Stranger.meet(http)
        for route in ("create_session", "asample", "forward_backward", "telemetry", "optim_step"):
            for content in (large, in_pieces()):
                answer = http.post(route, content=content, headers={"Content-Type": "application/json"})
                assert answer.status_code == 413, answer.text
                assert "100000" in check_refusal(answer)
        zstd = PROTOBUF | {"Content-Encoding": "zstd"}
        assert "100000" in check_refusal(http.post("forward_backward", content=_frame(large), headers=zstd))
        small = zstandard.ZstdCompressor().compress(stranger.pass_message().SerializeToString())
        accepted = http.post("forward_backward", content=small, headers=zstd)
        assert retrieve(http, accepted.json()["request_id"]).headers["content-type"] == PROTOBUF["Content-Type"]


def test_a_run_that_was_unloaded_answers_clearly(stranger: Stranger) -> None:
    other = Stranger.meet(stranger.http)
    first = stranger.http.post("unload_model", json={"model_id": other.run_id})
    assert retrieve(stranger.http, first.json()["request_id"]).json()["model_id"] == other.run_id

    again = stranger.http.post("unload_model", json={"model_id": other.run_id})
    if again.status_code == 200:
        assert retrieve(stranger.http, again.json()["request_id"]).status_code == 200
    else:
        check_refusal(again)
    assert stranger.http.post("get_info", json={"model_id": other.run_id}).status_code == 200
    for route, wish in (
        ("optim_step", {"adam_params": {}}),
        ("save_weights", {"path": "late"}),
        ("save_weights_for_sampler", {"path": "late"}),
    ):
        accepted = stranger.http.post(route, json={"model_id": other.run_id, "seq_id": 90, **wish})
        assert "unloaded" in retrieve(stranger.http, accepted.json()["request_id"]).json()["error"]


def test_a_client_that_goes_away_while_it_waits_harms_nobody(stranger: Stranger) -> None:
    sampler = stranger.open_sampler()
    body = {
        "sampling_session_id": sampler,
        "seq_id": 0,
        "prompt": PROMPT,
        "sampling_params": {"max_tokens": 8000, "stop": []},
    }
    request_id = stranger.http.post("asample", json=body).json()["request_id"]

    for _ in range(5):
        with pytest.raises(httpx.ReadTimeout):
            stranger.http.post("retrieve_future", json={"request_id": request_id}, timeout=0.05)
    stranger.http.post("cancel_future", json={"request_id": request_id})

    assert "cancelled" in check_failure(stranger.http, httpx.Response(200, json={"request_id": request_id}))
