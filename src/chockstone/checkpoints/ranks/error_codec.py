"""The error codec: encodes an error of one rank as JSON, and decodes it to the same class on another rank."""

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
    errors.UnstorableValue: ("path", "why"),
    errors.DamagedArchive: ("touched",),
    errors.RestoreMismatch: ("missing", "unexpected"),
    errors.ResumeBlocked: ("verdict",),
    errors.AdmissionRefused: ("needed_bytes",),
}


def encode_error(error: BaseException) -> dict[str, Any]:
    """Plain JSON: the nearest class of this library, the text, and the attributes that handlers of that class read."""
    names = [kind.__name__ for kind in type(error).__mro__]
    kind = next((name for name in names if name in _KINDS), "")
    text = str(error)[:_MAX_TEXT]
    encoded: dict[str, Any] = {"kind": kind, "text": text if kind and text else f"{names[0]}: {text}"}
    for owner, fields in _FIELDS.items():
        if isinstance(error, owner):
            encoded |= {field: getattr(error, field) for field in fields}
    return encoded


def decode_error(encoded: dict[str, Any], *, default: type[CheckpointError]) -> CheckpointError:
    """The encoded error. ``default``: the class for an error that is not of this library."""
    kind = _KINDS.get(encoded["kind"])
    if kind is None:
        return default(encoded["text"])
    error = kind.__new__(kind, encoded["text"])  # constructors differ; the attributes are encoded
    Exception.__init__(error, encoded["text"])
    for field, value in encoded.items():
        if field not in ("kind", "text"):
            setattr(error, field, tuple(value) if isinstance(value, list) else value)
    if isinstance(error, errors.DamagedArchive):
        error.where = None  # the text has it
    if isinstance(error, errors.ResumeBlocked | errors.ResumeExhausted):
        error.report = None
    return error
