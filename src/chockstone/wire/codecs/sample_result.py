"""Sample results: sequences and logprobs as the bytes a client gets, and as JSON for clients before protobuf."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from chockstone.wire.codecs import messages_pb2 as pb
from chockstone.wire.codecs import tensors
from chockstone.wire.codecs.samples import (
    Floats,
    SampledSequence,
    SampleRequest,
    SampleResult,
    StopReason,
    Targets,
    TopK,
)
from chockstone.wire.codecs.tensors import little_endian

NO_LOGPROB: Final = np.float32(-99999.0)  # with token 0: an empty cell of a TopK

_STOP_REASONS: Final[dict[StopReason, pb.StopReason.ValueType]] = {
    "stop": pb.STOP_REASON_STOP,
    "length": pb.STOP_REASON_LENGTH,
}


def encode_sample_result(result: SampleResult, request: SampleRequest) -> bytes:
    """Target logprobs take the layout in which ``request`` named the targets."""
    message = pb.SampleResponse(prompt_cache_hit_tokens=result.prompt_cache_hit_tokens)
    for sequence in result.sequences:
        added = message.sequences.add(
            stop_reason=_STOP_REASONS[sequence.stop_reason],
            tokens=little_endian(sequence.tokens, "<i4"),
            logprobs=little_endian(sequence.logprobs, "<f4"),
        )
        if sequence.topk is not None:
            added.topk_sampled_logprobs.CopyFrom(_encode_topk(sequence.topk))
    if result.prompt_logprobs is not None:
        message.prompt_logprobs = little_endian(result.prompt_logprobs, "<f4")
    if result.topk_prompt_logprobs is not None:
        message.topk_prompt_logprobs.CopyFrom(_encode_topk(result.topk_prompt_logprobs))
    if result.target_prompt_logprobs is not None and request.targets is not None:
        tensor = _like_targets(result.target_prompt_logprobs, request.targets)
        message.target_prompt_logprobs.CopyFrom(tensors.to_message(tensor))
    if result.prompt_alt_tokens is not None:
        drawn = result.prompt_alt_tokens
        message.prompt_alt_tokens.tokens.CopyFrom(
            tensors.to_message(tensors.Tensor(drawn.tokens.astype(np.int64), drawn.tokens.shape))
        )
        message.prompt_alt_tokens.logprobs.CopyFrom(
            tensors.to_message(tensors.Tensor(drawn.logprobs, drawn.logprobs.shape))
        )
    return message.SerializeToString(deterministic=True)


def read_sequences(encoded: bytes) -> tuple[SampledSequence, ...]:
    """The sequences that ``encode_sample_result`` wrote, without their alternatives."""
    return tuple(
        SampledSequence(
            tokens=np.frombuffer(sequence.tokens, np.dtype("<i4")),
            logprobs=_floats(sequence.logprobs),
            stop_reason="length" if sequence.stop_reason == pb.STOP_REASON_LENGTH else "stop",
        )
        for sequence in pb.SampleResponse.FromString(encoded).sequences
    )


def read_prompt_logprobs(encoded: bytes) -> Floats | None:
    """The log-probabilities of the prompt that ``encode_sample_result`` wrote, NaN for the first token; None: none."""
    message = pb.SampleResponse.FromString(encoded)
    return _floats(message.prompt_logprobs) if message.HasField("prompt_logprobs") else None


def sample_result_json(encoded: bytes) -> dict[str, Any]:
    """What ``encode_sample_result`` wrote, as far as clients before protobuf knew to ask for it."""
    message = pb.SampleResponse.FromString(encoded)
    answer: dict[str, Any] = {
        "type": "sample",
        "sequences": [
            {
                "stop_reason": "length" if sequence.stop_reason == pb.STOP_REASON_LENGTH else "stop",
                "tokens": np.frombuffer(sequence.tokens, np.dtype("<i4")).tolist(),
                "logprobs": _floats(sequence.logprobs).tolist(),
            }
            for sequence in message.sequences
        ],
    }
    if message.HasField("prompt_logprobs"):
        logprobs = _floats(message.prompt_logprobs).tolist()
        answer["prompt_logprobs"] = [None if math.isnan(logprob) else logprob for logprob in logprobs]
    if message.HasField("topk_prompt_logprobs"):
        answer["topk_prompt_logprobs"] = _topk_json(message.topk_prompt_logprobs)
    return answer


def _encode_topk(topk: TopK) -> pb.TopkLogprobs:
    length, k = topk.tokens.shape
    return pb.TopkLogprobs(
        token_ids=little_endian(topk.tokens, "<i4"), logprobs=little_endian(topk.logprobs, "<f4"), k=k, length=length
    )


def _like_targets(logprobs: Floats, targets: Targets) -> tensors.Tensor:
    if not targets.is_sparse:
        return tensors.Tensor(logprobs, logprobs.shape)
    wanted = targets.tokens >= 0
    crow = np.concatenate([[0], np.cumsum(wanted.sum(axis=1))]).astype(np.int64)
    return tensors.Tensor(logprobs[wanted], logprobs.shape, tensors.Csr(crow, np.nonzero(wanted)[1].astype(np.int64)))


def _topk_json(topk: pb.TopkLogprobs) -> list[list[tuple[int, float]] | None]:
    """Each position's pairs without its empty cells; a position without any is null."""
    tokens = np.frombuffer(topk.token_ids, np.dtype("<i4")).reshape(topk.length, topk.k)
    logprobs = _floats(topk.logprobs).reshape(topk.length, topk.k)
    filled = (tokens != 0) | (logprobs != NO_LOGPROB)
    return [
        [(token, logprob) for token, logprob, is_filled in zip(*row, strict=True) if is_filled] or None
        for row in zip(tokens.tolist(), logprobs.tolist(), filled.tolist(), strict=True)
    ]


def _floats(data: bytes) -> Floats:
    return np.frombuffer(data, np.dtype("<f4"))
