"""Sampling sessions: which weights a sampler samples from. The sampling session's id is the sampler's.

What is asked of a sampler is in ``sample_request``.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from chockstone.wire.messages.checkpoints import SkippedCheckpoint
from chockstone.wire.messages.schema import CheckpointPath, Counter, Identifier, Name, Request, Response


class CreateSamplingSessionRequest(Request):
    """From the weights at ``model_path``, or else from ``base_model`` as it is."""

    session_id: Identifier
    sampling_session_seq_id: Counter
    base_model: Name | None = None
    model_path: CheckpointPath | None = None

    @model_validator(mode="after")
    def _names_weights(self) -> Self:
        if self.base_model is None and self.model_path is None:
            raise ValueError("either model_path or base_model is needed.")
        return self


class CreateSamplingSessionResponse(Response):
    sampling_session_id: str
    path: str | None = None  # the path that model_path was resolved to
    skipped: list[SkippedCheckpoint] | None = None
    type: Literal["create_sampling_session"] = "create_sampling_session"


class JoinSamplingSessionRequest(Request):
    sampling_session_id: Identifier


class JoinSamplingSessionResponse(Response):
    """The original client is 0, so joining ones count from 1."""

    client_counter: int
    type: Literal["join_sampling_session"] = "join_sampling_session"


class SamplerResponse(Response):
    sampler_id: str
    base_model: str
    model_path: str | None = None  # None: the base model, or weights that were never given a name
