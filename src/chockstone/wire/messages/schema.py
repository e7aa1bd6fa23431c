"""Schemas: base classes of JSON requests and responses, types of fields, and the explanation of errors.

Requests ignore unknown fields, since clients are older and newer than this server, but are strict about known ones.
Responses leave nulls out and write times in UTC with a Z.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import orjson
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from chockstone.wire.codecs.json_values import describe
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import TinkerPath, check_name
from chockstone.wire.redaction import names_a_credential, redact_text

HOUR_SECONDS: Final = 3600
MIN_TTL_SECONDS: Final = HOUR_SECONDS
MAX_TTL_SECONDS: Final = 10 * 366 * 24 * HOUR_SECONDS
MAX_METADATA_FIELDS: Final = 256
MAX_METADATA_CHARACTERS: Final = 256 << 10
MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1

_EXPLAINED_ERRORS: Final = 5
_LENGTH_UNITS: Final = {  # by pydantic's type of error
    "string_too_short": "character",
    "string_too_long": "character",
    "too_short": "item",
    "too_long": "item",
}


class Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _is_writable(cls, value: object) -> object:
        """Nothing that JSON can hold but a database or UTF-8 cannot."""
        pending = [value]
        while pending:
            match pending.pop():
                case str() as text if not is_writable(text):
                    raise ValueError(f"{text[:80]!a} holds a NUL or half a surrogate pair, which is not text.")
                case dict() as fields:
                    pending += (*fields.keys(), *fields.values())
                case list() as elements:
                    pending += elements
        return value


class Response(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())

    def encode(self) -> bytes:
        """The body of the answer. Clients take an absent field for null, and some nulls for an error."""
        return self.model_dump_json(exclude_none=True).encode()


def explain(errors: Iterable[Mapping[str, Any]]) -> str:
    """Pydantic's errors, or FastAPI's, in a sentence each."""
    listed = list(itertools.islice(errors, _EXPLAINED_ERRORS))
    return " ".join(_explain(error) for error in listed) or "the request is not valid."


def _explain(error: Mapping[str, Any]) -> str:
    path = list(error["loc"])
    if path[:1] in (["body"], ["query"]):  # where FastAPI found it
        path = path[1:]
    is_key = path[-1:] == ["[key]"]  # of a mapping: the key is the input
    shown = path[:-2] if is_key else path
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{step:.80}" for step in shown).lstrip(".")
    name = f"{'a key of ' if is_key else ''}{redact_text(name) or 'the body'}"
    context = error.get("ctx", {})
    if error["type"] == "missing":
        return f"{name} is missing."
    if error["type"] in ("value_error", "assertion_error"):  # raised by a validator of ours
        message = redact_text(str(context["error"]))
        return f"{name}: {message}" if path else message
    if error["type"] == "extra_forbidden":
        return f"{name} is not a field of this request."
    if error["type"] in _LENGTH_UNITS:
        return f"{name} must have {_length_rule(error['type'], context)}, not {_length(error.get('input'), context)}."
    is_secret = any(isinstance(step, str) and names_a_credential(step) for step in path)
    found = "" if is_secret else f", not {redact_text(describe(error.get('input')))}"
    requirement = _requirement(str(error["msg"]))
    return f"{name}: {error['msg'][:300]}{found}." if requirement is None else f"{name} must {requirement}{found}."


def _requirement(message: str) -> str | None:
    """Of pydantic's "Input should be a valid string": "be a valid string". None: the message is no such rule."""
    subject, should, rule = message.partition(" should ")
    return rule if should and subject in ("Input", "String") else None


def _length_rule(error_type: str, context: Mapping[str, Any]) -> str:
    unit = _LENGTH_UNITS[error_type]
    word, limit = ("least", context.get("min_length")) if "min_length" in context else ("most", context["max_length"])
    return f"at {word} {limit} {unit}{'' if limit == 1 else 's'}"


def _length(value: object, context: Mapping[str, Any]) -> str:
    """The length of the value, where it is known."""
    if isinstance(value, str | list | dict):
        return str(len(value))
    return str(context.get("actual_length") or "what it has")


def is_writable(text: str) -> bool:
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _stringify(value: object) -> object:
    """Lists of runs and sessions break a client that meets anything but strings in metadata."""
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_METADATA_FIELDS:
        raise ValueError(f"{len(value)} fields are more than {MAX_METADATA_FIELDS}.")
    try:
        texts = {str(name): _as_text(inner) for name, inner in value.items()}
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a value cannot be written as JSON: {error!s:.100}.") from error
    size = sum(len(name) + len(text) for name, text in texts.items())
    if size > MAX_METADATA_CHARACTERS:
        raise ValueError(f"{size} characters are more than {MAX_METADATA_CHARACTERS}.")
    return texts


def check_plain(value: dict[str, Any]) -> dict[str, Any]:
    """Python reads more JSON than travels on: integers past 64 bits, half a surrogate pair, depth without end."""
    try:
        orjson.dumps([[[[[[[[value]]]]]]]])  # what passes it on wraps it
    except TypeError as error:
        raise ValueError(f"it holds a value that cannot be passed on: {error!s:.100}.") from error
    return value


def _check_name(name: str) -> str:
    try:
        return check_name(name)
    except BadRequest as refusal:
        raise ValueError(str(refusal)) from refusal


def _check_path(path: str) -> str:
    try:
        return str(TinkerPath.parse(path))
    except BadRequest as refusal:
        raise ValueError(str(refusal)) from refusal


def _check_ttl(seconds: int) -> int:
    if not MIN_TTL_SECONDS <= seconds <= MAX_TTL_SECONDS:
        raise ValueError(f"{describe(seconds)} seconds are not between an hour ({MIN_TTL_SECONDS}) and ten years.")
    return seconds


def _render(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


Identifier = Annotated[str, Field(min_length=1, max_length=255)]
Name = Annotated[str, Field(min_length=1, max_length=500)]
Text = Annotated[str, Field(max_length=10_000)]
Secret = Annotated[str, Field(min_length=1, max_length=10_000)]

TrainingSeqId = Annotated[int, Field(ge=1, le=MAX_INT32)]
Counter = Annotated[int, Field(ge=0, le=MAX_INT32)]
LongCounter = Annotated[int, Field(ge=0, le=MAX_INT64)]

CheckpointName = Annotated[str, AfterValidator(_check_name)]
CheckpointPath = Annotated[str, AfterValidator(_check_path)]
TtlSeconds = Annotated[int, AfterValidator(_check_ttl)]
PlainObject = Annotated[dict[str, Any], AfterValidator(check_plain)]  # Any: JSON
UserMetadata = Annotated[dict[str, str], BeforeValidator(_stringify)]
Timestamp = Annotated[AwareDatetime, PlainSerializer(_render, return_type=str, when_used="json")]
