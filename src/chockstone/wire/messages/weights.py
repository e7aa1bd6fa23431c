"""Weights: a run's state saved under a name, and loaded from a path."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from chockstone.wire.messages.checkpoints import SkippedCheckpoint
from chockstone.wire.messages.models import LoraConfig, OptimizerConfig
from chockstone.wire.messages.schema import (
    CheckpointName,
    CheckpointPath,
    Counter,
    Identifier,
    Name,
    Request,
    Response,
    Secret,
    Timestamp,
    TrainingSeqId,
    TtlSeconds,
    UserMetadata,
)

MAX_RECIPIENTS = 10
Recipient = Annotated[str, Field(min_length=1, max_length=2000)]  # age1..., or an SSH public key


def _check_recipients(recipients: list[str]) -> list[str]:
    if not recipients:
        raise ValueError("the list is empty: name a recipient, or leave the field out to have plain files.")
    if len(recipients) > MAX_RECIPIENTS:
        raise ValueError(f"{len(recipients)} recipients are too many; there may be up to {MAX_RECIPIENTS}.")
    return recipients


Recipients = Annotated[list[Recipient], AfterValidator(_check_recipients)]


class SaveWeightsRequest(Request):
    model_id: Identifier
    seq_id: TrainingSeqId
    path: CheckpointName
    ttl_seconds: TtlSeconds | None = None
    overwrite: bool = False
    user_metadata: UserMetadata | None = None


class SaveWeightsResponse(Response):
    path: str
    size_bytes: int | None = None
    type: Literal["save_weights"] = "save_weights"


class SaveWeightsForSamplerRequest(Request):
    """Either a ``path``, the name to save under, or the number of a sampling session that is to have the weights."""

    model_id: Identifier
    seq_id: TrainingSeqId
    path: CheckpointName | None = None
    sampling_session_seq_id: Counter | None = None
    ttl_seconds: TtlSeconds | None = None
    user_metadata: UserMetadata | None = None

    @model_validator(mode="after")
    def _has_one_purpose(self) -> Self:
        if (self.path is None) == (self.sampling_session_seq_id is None):
            raise ValueError("either path or sampling_session_seq_id is needed, and not both.")
        return self


class SaveWeightsForSamplerResponse(Response):
    path: str | None = None
    size_bytes: int | None = None
    sampling_session_id: str | None = None
    type: Literal["save_weights_for_sampler"] = "save_weights_for_sampler"


class SaveWeightsExternalRequest(Request):
    """As files that other programs read. With recipients each is encrypted to them, in the format of ``age``."""

    model_id: Identifier
    seq_id: TrainingSeqId
    path: CheckpointName
    ttl_seconds: TtlSeconds | None = None
    user_metadata: UserMetadata | None = None
    age_encryption_recipients: Recipients | None = None


class SaveWeightsExternalResponse(Response):
    path: str
    size_bytes: int | None = None
    type: Literal["save_weights_external"] = "save_weights_external"


class LoadWeightsRequest(Request):
    """Into a run, by ``model_id`` and ``seq_id``; or into one it creates, by ``session_id`` and ``model_seq_id``."""

    model_id: Identifier | None = None
    seq_id: TrainingSeqId | None = None
    session_id: Identifier | None = None
    model_seq_id: Counter | None = None
    path: CheckpointPath
    optimizer: bool = True  # SDKs without the flag load both
    base_model: Name | None = None
    user_metadata: UserMetadata | None = None
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: Secret | None = Field(default=None, repr=False)

    @model_validator(mode="after")
    def _has_one_address(self) -> Self:
        given = [part is not None for part in (self.model_id, self.seq_id, self.session_id, self.model_seq_id)]
        if given not in ([True, True, False, False], [False, False, True, True]):
            raise ValueError("either model_id and seq_id, or session_id and model_seq_id are needed.")
        return self


class LoadWeightsResponse(Response):
    path: str | None = None
    model_id: str | None = None
    type: Literal["load_weights"] = "load_weights"
    skipped: list[SkippedCheckpoint] | None = None


class WeightsInfoRequest(Request):
    tinker_path: CheckpointPath


class WeightsInfoResponse(Response):
    """Clients resume by it: they need ``lora_rank`` to be a number, and take an absent ``train_*`` for true."""

    base_model: str
    is_lora: bool
    lora_rank: int | None = None
    train_unembed: bool | None = None
    train_mlp: bool | None = None
    train_attn: bool | None = None
    optimizer_config: OptimizerConfig = OptimizerConfig()
    path: str | None = None  # the path that the requested one was resolved to
    skipped: list[SkippedCheckpoint] | None = None


class CopyWeightsRequest(Request):
    """Into a project, or into the project of a session."""

    source_path: CheckpointPath
    destination_project_id: Identifier | None = None
    session_id: Identifier | None = None
    model_seq_id: Counter | None = None
    ttl_seconds: TtlSeconds | None = None
    weights_access_token: Secret | None = Field(default=None, repr=False)

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if (self.session_id is None) != (self.model_seq_id is None):
            raise ValueError("session_id and model_seq_id are needed together, or neither.")
        if self.session_id is not None and self.destination_project_id is not None:
            raise ValueError("either destination_project_id or session_id, and not both.")
        return self


class CopyWeightsResponse(Response):
    tinker_path: str


class ExternalWeightsUploadStartRequest(Request):
    """``name`` is our own: SDKs do not send it."""

    base_model: Name
    lora_config: Annotated[LoraConfig, BeforeValidator(lambda given: LoraConfig() if given is None else given)] = (
        LoraConfig()
    )
    destination_project_id: Identifier | None = None
    name: CheckpointName = "imported"


class ExternalWeightsUploadStartResponse(Response):
    """A self-authorising URL for each file, which takes one PUT of the whole file; a second PUT replaces the first."""

    upload_id: str
    urls: dict[str, str]
    expires: Timestamp


class ExternalWeightsUploadFinishRequest(Request):
    upload_id: Identifier


class ExternalWeightsUploadFinishResponse(Response):
    """``receipt`` says what was read; it is left out when an earlier request has finished the upload."""

    tinker_path: str
    receipt: dict[str, Any] | None = None  # Any: plain JSON
