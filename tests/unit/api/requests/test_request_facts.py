from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from chockstone.api.requests.request_facts import (
    client_of,
    fields_of,
    is_forwarded,
    mark_forwarded,
    method_of,
    owner_of,
    route_of,
)


def scope(**values: Any) -> dict[str, Any]:
    return {"method": "GET", "path": "/secret-token", "headers": [], **values}


def test_names_come_from_the_server_and_not_from_the_client() -> None:
    made_up = scope(method="GETX\n", client=("1" * 100, 7))

    assert (method_of(made_up), route_of(made_up), owner_of(made_up)) == ("(other)", "(none)", "-")
    assert len(client_of(made_up)) == 64
    assert client_of(scope()) == "-"


def test_a_request_is_named_by_its_route_and_its_caller() -> None:
    known = scope(route=SimpleNamespace(path="/api/v1/runs/{run_id}"), state={"caller": SimpleNamespace(user_id="ann")})

    assert (method_of(known), route_of(known), owner_of(known)) == ("GET", "/runs/{run_id}", "ann")


def test_a_request_that_another_server_answered_is_marked() -> None:
    forwarded = scope()

    assert not is_forwarded(forwarded)
    mark_forwarded(forwarded)

    assert is_forwarded(forwarded)


def test_all_fields_of_a_name_are_found() -> None:
    assert fields_of(scope(headers=[(b"a", b"1"), (b"b", b"2"), (b"a", b"\xff")]), b"a") == ["1", "ÿ"]
