"""Load errors: turns errors of reading an archive into a RequestError with the code that the engine acts on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chockstone.checkpoints.errors import (
    CheckpointError,
    CheckpointMissing,
    DamagedArchive,
    ForeignArchive,
    StoreDenied,
    StoreUnreachable,
    UnsupportedArchive,
)
from chockstone.wire.failures import BadRequest, Code, RequestError, ServerFailure

_CODES: Final[Mapping[type[CheckpointError], Code]] = {
    DamagedArchive: "damaged",
    ForeignArchive: "damaged",
    UnsupportedArchive: "newer",
    StoreDenied: "denied",
    StoreUnreachable: "unreachable",
}


def explain_load(error: CheckpointError) -> RequestError:
    if isinstance(error, CheckpointMissing):
        return BadRequest(f"the checkpoint is not in the store any more: {error}", code="missing")
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
    return ServerFailure(f"the checkpoint cannot be loaded: {error}", code=code, reason=str(error))
