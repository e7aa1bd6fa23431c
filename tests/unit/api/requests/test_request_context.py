from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from chockstone.telemetry.log_format import TextFormatter
from support.api.users import User
from support.served import Served


class Lines(logging.Handler):
    """Every line as the server writes it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(TextFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("chockstone"):
            self.lines.append(self.format(record))

    def of(self, request_id: str) -> list[str]:
        return [line for line in self.lines if f" x_request_id={request_id}" in line.splitlines()[0]]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    caplog.set_level(logging.DEBUG)
    lines = Lines()
    logging.getLogger().addHandler(lines)
    yield lines
    logging.getLogger().removeHandler(lines)


async def test_a_finished_request_is_one_line_at_debug(ann: User, log: Lines) -> None:
    answer = await ann.http.get("training_runs", headers={"X-Request-ID": "r-1"})

    [line] = log.of("r-1")
    assert answer.headers["x-request-id"] == "r-1"
    assert (
        " DEBUG chockstone.api.requests.request_context request finished route='GET /training_runs' status=200" in line
    )
    assert f" bytes={len(answer.content)} owner=ann client=127.0.0.1 x_request_id=r-1" in line


async def test_a_failed_request_is_a_warning_and_a_line_at_debug_with_the_same_id(ann: User, log: Lines) -> None:
    await ann.http.get("training_runs/nowhere", headers={"X-Request-ID": "r-2"})

    failed, finished = log.of("r-2")
    assert " WARNING " in failed and "status=404 owner=ann" in failed and "reason=" in failed
    assert " DEBUG " in finished and "status=404" in finished


@pytest.mark.parametrize("sent", ["", "a b", "x" * 129, "\x1b[31m"])
async def test_an_id_that_does_not_fit_into_a_line_is_replaced(ann: User, sent: str) -> None:
    first = await ann.http.get("training_runs", headers={"X-Request-ID": sent})
    second = await ann.http.get("training_runs", headers={"X-Request-ID": sent})

    ids = [answer.headers.get_list("x-request-id") for answer in (first, second)]
    assert all(len(made) == 1 and len(made[0]) == 16 for made in ids)
    assert ids[0] != ids[1]


async def test_refusals_before_any_route_have_an_id_too(served: Served, log: Lines) -> None:
    refused = await served.http.get("training_runs", headers={"X-API-Key": "", "X-Request-ID": "r-3"})

    assert (refused.status_code, refused.headers["x-request-id"]) == (401, "r-3")
    assert len(log.of("r-3")) == 2


async def test_lines_about_an_operation_have_the_id_of_the_request_that_asked_for_it(ann: User, log: Lines) -> None:
    run_id = await ann.run()
    log.lines.clear()
    accepted = []
    for number in range(3):  # of which the later ones wait for the first
        body = {"model_id": run_id, "seq_id": 10 + number, "path": f"c{number}"}
        accepted.append(await ann.http.post("save_weights", json=body, headers={"X-Request-ID": f"save-{number}"}))
    for answer in accepted:
        await ann.http.post("retrieve_future", json=answer.json(), headers={"X-Request-ID": "poll"})

    for number in range(3):
        [saved] = [
            line for line in log.of(f"save-{number}") if " chockstone.engine.runs.saving checkpoint saved" in line
        ]
        assert f"name=c{number} " in saved
