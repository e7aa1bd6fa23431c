"""Training: messages of optimizer steps and custom losses."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from chockstone.wire.messages.schema import (
    Counter,
    Identifier,
    Name,
    PlainObject,
    Request,
    Response,
    TrainingSeqId,
    check_plain,
)


class OptimStepRequest(Request):
    """Either ``adam_params``, or ``optimizer_params`` with a ``type``. Which values they may have, the backend says."""

    model_id: Identifier
    seq_id: TrainingSeqId
    adam_params: PlainObject | None = None
    optimizer_params: PlainObject | None = None

    @model_validator(mode="after")
    def _names_one_optimizer(self) -> Self:
        if (self.adam_params is None) == (self.optimizer_params is None):
            raise ValueError("either adam_params or optimizer_params is needed, and not both.")
        if self.optimizer_params is not None and not isinstance(self.optimizer_params.get("type"), str):
            raise ValueError("optimizer_params.type is missing: the optimizer's name.")
        return self


class OptimStepResponse(Response):
    """Metric names are free here."""

    metrics: dict[str, float] | None = None


MAX_INPUTS = 16
MAX_NODES = 10_000


class LossInput(Request):
    """``logprobs``, or a key of a datum's inputs. Rank 0 is a scalar, 1 is [N], 2 is [N, K]."""

    name: Identifier
    rank: Literal[0, 1, 2]


class LossNode(Request):
    """One step of the graph. Objects in its arguments have one key that says what they are; see the protocol.

    A graph must be understood in full, so unknown fields are refused here.
    """

    model_config = ConfigDict(extra="forbid")

    op: Literal["placeholder", "get_attr", "call_function", "call_method", "call_module", "output"]
    name: Identifier
    target: Identifier
    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)


class LossGraph(Request):
    format: Literal[1] = 1
    nodes: Annotated[list[LossNode], Field(min_length=1, max_length=MAX_NODES)]


class CreateCustomLossRequest(Request):
    session_id: Identifier
    custom_loss_seq_id: Counter
    name: Name
    inputs: Annotated[list[LossInput], Field(min_length=1, max_length=MAX_INPUTS)]
    graph: LossGraph

    @model_validator(mode="after")
    def _starts_with_logprobs(self) -> Self:
        names = [given.name for given in self.inputs]
        if names[0] != "logprobs" or self.inputs[0].rank == 0:
            raise ValueError("the first of inputs must be 'logprobs', of rank 1 or 2.")
        if len(set(names)) != len(names):
            raise ValueError("inputs must have different names.")
        check_plain(self.graph.model_dump())
        return self


class CreateCustomLossResponse(Response):
    loss_id: str
    type: Literal["create_custom_loss"] = "create_custom_loss"
