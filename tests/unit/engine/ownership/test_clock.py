from __future__ import annotations

import logging
from pathlib import Path

import pytest

from chockstone.engine.ownership.clock import ClockRecord, ServerClock

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
NOW = 1.9e9


class Machine:
    """Its two clocks."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.wall = NOW
        self.steady = 1000.0

    def start(self) -> ServerClock:
        return ServerClock(self.data, wall=lambda: self.wall, steady=lambda: self.steady)

    def pass_seconds(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def restart(self, clock: ServerClock, *, off_seconds: float, shift: float = 0.0) -> ServerClock:
        clock.write()
        self.wall += off_seconds + shift
        self.steady = 1.0  # it was booted
        return self.start()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_time_is_that_of_the_wall_clock(machine: Machine) -> None:
    clock = machine.start()
    machine.pass_seconds(HOUR)
    machine.wall += 2 * MINUTE  # as a time server corrects it

    assert clock.now().timestamp() == machine.wall
    assert clock.trusts_ages()


@pytest.mark.parametrize("shift", [40 * DAY, -40 * DAY, 6 * MINUTE, -6 * MINUTE])
def test_time_goes_on_when_the_wall_clock_jumps_and_no_age_is_trusted(
    machine: Machine, shift: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = machine.start()
    machine.wall += shift
    machine.pass_seconds(75)

    assert clock.now().timestamp() == NOW + 75
    assert not clock.trusts_ages()
    [said] = caplog.messages
    assert "the wall clock jumped" in said
    assert f"touch {machine.data / 'clock-confirmed'}" in said

    machine.wall -= shift

    assert clock.trusts_ages()
    assert clock.now().timestamp() == machine.wall


def test_a_time_that_lasts_for_a_day_is_taken(machine: Machine) -> None:
    clock = machine.start()
    machine.wall += 40 * DAY
    assert not clock.trusts_ages()
    machine.pass_seconds(DAY - 1)
    assert not clock.trusts_ages()

    machine.pass_seconds(1)

    assert clock.trusts_ages()
    assert clock.now().timestamp() == machine.wall


def test_a_clock_that_jumps_again_has_to_last_for_a_day_from_then(machine: Machine) -> None:
    clock = machine.start()
    machine.wall += 40 * DAY
    assert not clock.trusts_ages()
    machine.pass_seconds(DAY - HOUR)
    machine.wall += 10 * DAY
    assert not clock.trusts_ages()
    machine.pass_seconds(2 * HOUR)

    assert not clock.trusts_ages()


def test_an_operator_confirms_the_time_once(machine: Machine) -> None:
    clock = machine.start()
    machine.wall += 40 * DAY
    assert not clock.trusts_ages()

    confirmation = machine.data / "clock-confirmed"
    confirmation.touch()
    clock.check()

    assert clock.trusts_ages()
    assert clock.now().timestamp() == machine.wall
    assert not confirmation.exists()
    assert machine.restart(clock, off_seconds=MINUTE).trusts_ages()


def test_a_restart_within_a_day_is_nothing(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    clock = machine.restart(machine.start(), off_seconds=DAY - HOUR)

    assert clock.trusts_ages()
    assert clock.now().timestamp() == machine.wall
    assert not caplog.messages


def test_a_server_that_was_off_for_long_waits_a_day_before_it_deletes(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    clock = machine.restart(machine.start(), off_seconds=14 * DAY)

    assert not clock.trusts_ages()
    assert clock.now().timestamp() == machine.wall
    [said] = caplog.messages
    assert "14 days" in said
    machine.pass_seconds(DAY)
    assert clock.trusts_ages()


def test_restarts_do_not_make_a_wrong_time_right(machine: Machine) -> None:
    clock = machine.restart(machine.start(), off_seconds=MINUTE, shift=40 * DAY)
    for _ in range(3):
        machine.pass_seconds(HOUR)
        assert not clock.trusts_ages()
        clock = machine.restart(clock, off_seconds=MINUTE)

    machine.pass_seconds(DAY - 3 * HOUR - 1)
    assert not clock.trusts_ages()
    machine.pass_seconds(1)
    assert clock.trusts_ages(), "a day in all, while servers ran"


def test_a_jump_is_remembered_over_a_restart(machine: Machine) -> None:
    clock = machine.start()
    machine.wall += 40 * DAY
    assert not clock.trusts_ages()

    assert not machine.restart(clock, off_seconds=MINUTE).trusts_ages()


def test_a_machine_that_boots_in_the_past_goes_on_from_the_last_known_time_until_it_is_told(machine: Machine) -> None:
    clock = machine.start()
    true = machine.wall
    clock = machine.restart(clock, off_seconds=HOUR, shift=-true)

    assert not clock.trusts_ages()
    assert clock.now().timestamp() == true, "nothing that is made now is older than what there is"
    machine.pass_seconds(MINUTE)
    machine.wall += true

    assert clock.trusts_ages()
    assert clock.now().timestamp() == true + HOUR + MINUTE


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"{}", b'{"trusted_at": NaN}', b"[" * 100_000, b'{"trusted_at": "x"}'),
        b'{"trusted_at": 1e300, "doubted_at": null, "waited_seconds": 0}',
        b'{"trusted_at": 0, "doubted_at": 0, "waited_seconds": NaN}',
        b'{"trusted_at": 0, "doubted_at": Infinity, "waited_seconds": 0}',
    ],
)
def test_a_record_that_cannot_be_understood_is_none(machine: Machine, content: bytes) -> None:
    (machine.data / "clock.json").write_bytes(content)

    assert machine.start().trusts_ages()


def test_the_record_is_written_now_and_then(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    clock = machine.start()
    clock.check()
    machine.pass_seconds(10)
    clock.check()
    assert ClockRecord.read(machine.data / "clock.json") == ClockRecord(NOW)

    machine.pass_seconds(MINUTE)
    clock.check()
    assert ClockRecord.read(machine.data / "clock.json") == ClockRecord(NOW + 70)

    (machine.data / "clock.json").unlink()
    machine.data.rmdir()
    machine.pass_seconds(MINUTE)
    with caplog.at_level(logging.WARNING):
        clock.check()
    assert "time not recorded" in caplog.text
