"""Steps of an optimizer."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from chockstone.wire.schema import Identifier, PlainObject, Request, Response, TrainingSeqId


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
