"""Hearsay: an error of one process as JSON, and as an error of the same kind in another."""

from __future__ import annotations

from typing import Any

from chockstone.checkpoints import errors
from chockstone.checkpoints.errors import CheckpointError

_MAX_TEXT = 4000
_KINDS: dict[str, type[CheckpointError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CheckpointError)
}
_FIELDS: dict[type[CheckpointError], tuple[str, ...]] = {
    errors.UnstorableValue: ("path",),
    errors.DamagedArchive: ("touched",),
    errors.RestoreMismatch: ("missing", "unexpected"),
    errors.ResumeBlocked: ("verdict",),
    errors.AdmissionRefused: ("needed_bytes",),
}


def encode_error(error: BaseException) -> dict[str, Any]:
    """Plain JSON: the nearest kind of this library's, its text, and what else a handler of that kind looks at."""
    names = [kind.__name__ for kind in type(error).__mro__]
    kind = next((name for name in names if name in _KINDS), "")
    text = str(error)[:_MAX_TEXT]
    told: dict[str, Any] = {"kind": kind, "text": text if kind and text else f"{names[0]}: {text}"}
    for owner, fields in _FIELDS.items():
        if isinstance(error, owner):
            told |= {field: getattr(error, field) for field in fields}
    return told


def decode_error(told: dict[str, Any], *, otherwise: type[CheckpointError]) -> CheckpointError:
    """The error that was told of. ``otherwise``: what stands for one that is not of this library."""
    kind = _KINDS.get(told["kind"])
    if kind is None:
        return otherwise(told["text"])
    error = kind.__new__(kind, told["text"])  # constructors differ; what they would set is told
    Exception.__init__(error, told["text"])
    for field, value in told.items():
        if field not in ("kind", "text"):
            setattr(error, field, tuple(value) if isinstance(value, list) else value)
    if isinstance(error, errors.DamagedArchive):
        error.where = None  # the text has it
    if isinstance(error, errors.ResumeBlocked | errors.ResumeExhausted):
        error.report = None
    return error
