"""Models: messages to create, describe and unload a run. The model id is the run id."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from chockstone.wire.messages.schema import Counter, Identifier, Name, Request, Response, UserMetadata

MAX_RANK = 8192
DEFAULT_RANK = 32


class LoraConfig(Request):
    """Rank 0 trains all weights. Otherwise at least one part of the model must be trained."""

    rank: Annotated[int, Field(ge=0, le=MAX_RANK)] = DEFAULT_RANK
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None  # None: the server draws one
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True

    @model_validator(mode="after")
    def _trains_something(self) -> Self:
        if self.rank and not (self.train_unembed or self.train_mlp or self.train_attn):
            raise ValueError("train_unembed, train_mlp and train_attn are all false: nothing would be trained.")
        return self


class OptimizerConfig(BaseModel):
    """An optimizer family and its own fields, in requests and responses alike. Which there are, the backend says."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False)

    type: Annotated[str, Field(min_length=1, max_length=100)] = "adamw"


class CreateModelRequest(Request):
    session_id: Identifier
    model_seq_id: Counter
    base_model: Name
    lora_config: Annotated[LoraConfig, BeforeValidator(lambda given: LoraConfig() if given is None else given)] = (
        LoraConfig()
    )
    optimizer_config: Annotated[
        OptimizerConfig, BeforeValidator(lambda given: OptimizerConfig() if given is None else given)
    ] = OptimizerConfig()
    user_metadata: UserMetadata | None = None


class CreateModelResponse(Response):
    model_id: str
    type: Literal["create_model"] = "create_model"


class GetInfoRequest(Request):
    model_id: Identifier


class ModelData(Response):
    """``tokenizer_id`` is what the client hands to ``AutoTokenizer.from_pretrained``, cut at its first colon."""

    arch: str | None = None
    model_name: str
    tokenizer_id: str | None = None


class GetInfoResponse(Response):
    model_id: str
    model_data: ModelData
    model_name: str | None = None
    is_lora: bool | None = None
    lora_rank: int | None = None
    optimizer_config: OptimizerConfig = OptimizerConfig()
    type: Literal["get_info"] = "get_info"


class UnloadModelRequest(Request):
    model_id: Identifier


class UnloadModelResponse(Response):
    model_id: str
    type: Literal["unload_model"] = "unload_model"
