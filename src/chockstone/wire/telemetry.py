"""Telemetry: taken from clients whatever it holds, since they retry for ever what is refused.

It holds credentials. Nothing of it may be logged or kept but through ``redaction.redact``.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, model_validator

from chockstone.wire.redaction import redact
from chockstone.wire.schema import Request, Response


class TelemetryRequest(Request):
    model_config = ConfigDict(extra="allow", allow_inf_nan=True)

    @model_validator(mode="before")
    @classmethod
    def _is_writable(cls, value: object) -> object:
        return value  # or not; it is redacted before it is written

    def redacted(self) -> dict[str, Any]:
        fields: dict[str, Any] = redact(self.__pydantic_extra__ or {})
        return fields


class TelemetryResponse(Response):
    status: Literal["accepted"] = "accepted"
