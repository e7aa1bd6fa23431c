"""Messages as the SDK sends and reads them, compared with ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import orjson
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from tinker._compat import model_dump

from chockstone.wire.failures import BadRequest
from chockstone.wire.messages import schema

R = TypeVar("R", bound=schema.Request)


def sent(request: BaseModel) -> Any:
    """A request's body as the SDK sends it: nulls dropped."""
    return orjson.loads(orjson.dumps(model_dump(request, exclude_unset=False, exclude_none=True, mode="json")))


def read_request(request_type: type[R], body: object) -> R:
    """As the API reads it; BadRequest has the words that the client gets."""
    try:
        return request_type.model_validate(body)
    except ValidationError as error:
        raise BadRequest(schema.explain(error.errors(include_url=False))) from None


def assert_sent_by_the_sdk_is_read(ours: type[schema.Request], theirs: BaseModel) -> None:
    body = sent(theirs)

    read = read_request(ours, body)

    kept = orjson.loads(read.model_dump_json(exclude_none=True))
    body.pop("type", None)
    body.pop("record_stability_info", None)
    assert body.items() <= kept.items()


def assert_read_by_the_sdk(ours: schema.Response, theirs: Any) -> None:
    answer = orjson.loads(ours.encode())

    read = TypeAdapter(theirs).validate_json(ours.encode(), strict=True)

    understood = orjson.loads(orjson.dumps(TypeAdapter(theirs).dump_python(read, mode="json", exclude_none=True)))
    assert answer.items() <= understood.items()


def assert_refused(request_type: type[schema.Request], body: Any, words: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        read_request(request_type, body)

    assert words in str(refusal.value)
    assert len(str(refusal.value)) < 1000


def request_ids(requests: Sequence[tuple[type[schema.Request], BaseModel]]) -> list[str]:
    return [f"{i}-{theirs.__class__.__name__}" for i, (_, theirs) in enumerate(requests)]


def response_ids(responses: Sequence[tuple[schema.Response, Any]]) -> list[str]:
    return [f"{i}-{theirs.__name__}" for i, (_, theirs) in enumerate(responses)]
