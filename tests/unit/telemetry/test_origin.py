from __future__ import annotations

import asyncio

import pytest

from chockstone.telemetry.origin import NO_ORIGIN, RequestOrigin, accept_request_id, current_request_id, working_for

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("sent", ["a", "7f3c-11", "Root=1-67891233-abcdef012345678912345678", "x" * 128])
def test_a_valid_id_of_the_client_is_taken(sent: str) -> None:
    assert accept_request_id([sent]) == sent


@pytest.mark.parametrize(
    "sent", [[], [""], ["a b"], ["a\nb"], ["x" * 129], ["é"], ["\x1b[31m"], ['"'], ["a", "a"], ["a,b"]]
)
def test_any_other_id_is_replaced_by_a_new_one(sent: list[str]) -> None:
    made = accept_request_id(sent)

    assert len(made) == 16 and made not in sent
    assert accept_request_id(sent) != made


async def test_tasks_that_a_request_starts_work_for_it() -> None:
    async def look() -> str | None:
        await asyncio.sleep(0)
        return current_request_id()

    with working_for("r-1"):
        task = asyncio.create_task(look())
        in_thread = await asyncio.to_thread(current_request_id)

    assert current_request_id() is None
    assert (await task, in_thread) == ("r-1", "r-1")


def test_an_origin_travels_as_json_and_is_resumed() -> None:
    with working_for("r-1"):
        origin = RequestOrigin.here()

    again = RequestOrigin.from_json(origin.to_json())

    assert origin.to_json() == {"request": "r-1"}
    with again.resumed():
        assert current_request_id() == "r-1"
    assert current_request_id() is None
    assert NO_ORIGIN.to_json() == {}


@pytest.mark.parametrize(
    "found", [None, 7, "r-1", [], {"request": 7, "trace": 8}, {"request": "a\nb", "trace": "00-1"}]
)
def test_what_is_no_origin_is_none(found: object) -> None:
    assert RequestOrigin.from_json(found) == NO_ORIGIN


def test_the_trace_of_an_origin_is_checked() -> None:
    assert RequestOrigin.from_json({"trace": TRACEPARENT}).traceparent == TRACEPARENT
