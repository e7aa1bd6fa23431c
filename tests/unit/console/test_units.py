from __future__ import annotations

import pytest

from chockstone.console.units import BYTE_UNITS, TIME_UNITS, read_amount, read_count, split_amount
from chockstone.wire.failures import BadRequest


def test_an_amount_is_a_number_in_its_unit() -> None:
    form = {"ttl": " 1.5 ", "ttl_unit": "days", "quota": "2", "quota_unit": "GiB", "empty": "", "empty_unit": "days"}

    assert read_amount(form, "ttl", units="time") == 129_600
    assert read_amount(form, "quota", units="bytes") == 2 << 30
    assert read_amount(form, "empty", units="time") is None
    assert read_amount(form, "absent", units="time") is None


@pytest.mark.parametrize("text", ["-1", "0", "nan", "inf", "1e99", "ten", "1 day"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="is not a number of days"):
        read_amount({"ttl": text, "ttl_unit": "days"}, "ttl", units="time")


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(BadRequest, match="there are minutes, hours, days, weeks"):
        read_amount({"ttl": "1", "ttl_unit": "GiB"}, "ttl", units="time")


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "x", "9" * 30, "٣"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="keep_last"):
        read_count({"keep_last": text}, "keep_last")


def test_a_count_may_be_left_out() -> None:
    assert read_count({"keep_last": " 12 "}, "keep_last") == 12
    assert read_count({"keep_last": " "}, "keep_last") is None


@pytest.mark.parametrize(
    ("value", "units", "shown"),
    [
        (None, TIME_UNITS, ("", "days")),
        (86_400.0, TIME_UNITS, ("1", "days")),
        (1_209_600.0, TIME_UNITS, ("2", "weeks")),
        (90.0, TIME_UNITS, ("1.5", "minutes")),
        (None, BYTE_UNITS, ("", "GiB")),
        (5 << 30, BYTE_UNITS, ("5", "GiB")),
        (1 << 19, BYTE_UNITS, ("0.5", "MiB")),
    ],
)
def test_an_amount_is_shown_in_the_largest_whole_unit(
    value: float | None, units: dict[str, int], shown: tuple[str, str]
) -> None:
    assert split_amount(value, units) == shown
