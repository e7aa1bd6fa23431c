from __future__ import annotations

from dataclasses import replace

import pytest

from chockstone.engine.failure_log import (
    IN_FULL,
    KINDS,
    KINDS_PER_CALLER,
    KINDS_WITHOUT_KEY,
    FailureLog,
    RequestFailure,
)
from chockstone.telemetry.log_format import fields_of

FAILED = RequestFailure("POST /save_weights", 400, "the name is taken", owner="ann", client="10.0.0.1")


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def failures(clock: Clock) -> FailureLog:
    return FailureLog(interval_seconds=60.0, monotonic=clock)


def test_a_failure_is_one_warning_with_all_that_is_known(
    failures: FailureLog, caplog: pytest.LogCaptureFixture
) -> None:
    failures.record(replace(FAILED, request_id="s:train:0:1"))

    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.message == (
        "request failed route='POST /save_weights' status=400 owner=ann client=10.0.0.1 request=s:train:0:1 "
        "reason='the name is taken'"
    )


def test_the_status_of_http_is_a_number_and_a_category_has_a_field_of_its_own(
    failures: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(IN_FULL + 1):
        failures.record(FAILED)
        failures.record(replace(FAILED, route="save", status="user"))
    clock.seconds = 61.0
    failures.report_due()

    logged = [fields_of(record) for record in caplog.records]
    refused = [fields for fields in logged if fields["route"] == FAILED.route]
    later = [fields for fields in logged if fields["route"] == "save"]
    assert len(refused) == len(later) == IN_FULL + 1
    assert all(fields["status"] == 400 and "category" not in fields for fields in refused)
    assert all(fields["category"] == "user" and "status" not in fields for fields in later)


def test_a_flood_of_one_kind_is_counted_and_told_once_at_the_end_of_the_interval(
    failures: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1000):
        failures.record(replace(FAILED, reason=f"reason {number}"))
    assert len(caplog.messages) == IN_FULL

    clock.seconds = 61.0
    failures.report_due()
    failures.report_due()

    [told] = caplog.messages[IN_FULL:]
    assert told.startswith("requests failed route='POST /save_weights' status=400 owner=ann client=10.0.0.1")
    assert told.endswith(f" more={1000 - IN_FULL} last_reason='reason 999'")
    failures.record(FAILED)
    assert caplog.messages[-1].endswith("reason='the name is taken'")


def test_a_flood_of_many_callers_is_bounded(
    failures: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10_000):
        failures.record(replace(FAILED, owner=f"user-{number}"))
    clock.seconds = 61.0
    failures.report_due()

    assert len(caplog.messages) == KINDS + 1
    assert caplog.messages[-1] == f"requests failed of further kinds count={10_000 - KINDS}"


def test_one_caller_that_floods_does_not_hide_another(failures: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(1000):
        failures.record(FAILED)
    failures.record(replace(FAILED, owner="bob", reason="the quota is used up"))

    assert "owner=bob" in caplog.messages[-1] and "the quota is used up" in caplog.messages[-1]


def test_callers_without_a_key_have_few_kinds_and_hide_no_failure_of_a_user(
    failures: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1000):
        failures.record(RequestFailure(f"GET /{number % 7}", 401, "no key", client=f"10.0.0.{number}"))
    assert len(caplog.messages) == KINDS_WITHOUT_KEY

    for number in range(KINDS):
        failures.record(replace(FAILED, owner=f"user-{number}"))
    clock.seconds = 61.0
    failures.report_due()

    assert sum("owner=user-" in message for message in caplog.messages) == KINDS
    assert caplog.messages[-1] == f"requests failed of further kinds count={1000 - KINDS_WITHOUT_KEY}"


@pytest.mark.parametrize("owner", ["ann", "-"])
def test_one_caller_with_failures_of_many_kinds_does_not_hide_another(
    failures: FailureLog, caplog: pytest.LogCaptureFixture, owner: str
) -> None:
    for number in range(1000):
        failures.record(replace(FAILED, owner=owner, route=f"GET /{number}"))
    assert len(caplog.messages) == KINDS_PER_CALLER

    other = "-" if owner == "-" else "bob"
    failures.record(replace(FAILED, owner=other, client="10.0.0.2", reason="the quota is used up"))

    assert "client=10.0.0.2" in caplog.messages[-1] and "the quota is used up" in caplog.messages[-1]


def test_a_user_with_many_addresses_is_one_caller(failures: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1000):
        failures.record(replace(FAILED, client=f"10.0.{number // 256}.{number % 256}"))

    assert len(caplog.messages) == KINDS_PER_CALLER


def test_what_a_client_sent_cannot_forge_a_line(failures: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    failures.record(replace(FAILED, reason="no\n2026-01-01 ERROR forged\x1b[31m" + "x" * 10_000))

    [message] = caplog.messages
    assert "\n" not in message and "\x1b" not in message
    assert len(message) < 1000
