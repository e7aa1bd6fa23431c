from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chockstone.engine.runs import used_seq_ids as numbers
from chockstone.engine.runs.used_seq_ids import UsedSeqIds
from chockstone.wire.failures import BadRequest


def used(*seq_ids: int) -> UsedSeqIds:
    made = UsedSeqIds()
    for seq_id in seq_ids:
        made.add(seq_id)
    return made


def test_the_first_number_may_be_0() -> None:
    assert not UsedSeqIds().has(0)
    assert used(0).has(0)


def test_a_number_may_be_missing_and_may_come_late() -> None:
    made = used(5, 2)

    assert made.has(5) and made.has(2)
    assert not made.has(3) and not made.has(6)


def test_a_repeat_is_known_until_as_many_newer_ones_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "REMEMBERED", 3)

    made = used(1, 2, 3, 4)

    assert all(made.has(seq_id) for seq_id in (2, 3, 4))
    with pytest.raises(BadRequest, match="seq_id 1 is too old: this run is at 4"):
        made.has(1)


def test_a_number_that_was_forgotten_is_never_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a smaller one that never came: it cannot be told from one that did."""
    monkeypatch.setattr(numbers, "REMEMBERED", 2)

    made = used(7, 8, 6, 9, 10)

    for seq_id in (0, 5, 6, 7, 8):
        with pytest.raises(BadRequest):
            made.has(seq_id)
    assert made.has(9) and made.has(10) and not made.has(11)


def verdict(made: UsedSeqIds, seq_id: int) -> bool | str:
    try:
        return made.has(seq_id)
    except BadRequest:
        return "too old"


@given(st.lists(st.integers(0, 12_000), unique=True, max_size=60), st.booleans())
def test_what_is_written_down_says_the_same_of_every_number(seq_ids: list[int], is_long: bool) -> None:
    made = used(*range(5000) if is_long else (), *(seq_id + 5000 for seq_id in seq_ids))

    again = UsedSeqIds.from_json(orjson.loads(orjson.dumps(made.to_json())))

    for seq_id in range(0, 17_001, 1 if not is_long else 7):
        assert verdict(again, seq_id) == verdict(made, seq_id)


def test_a_long_life_takes_little_to_write_down() -> None:
    assert len(orjson.dumps(used(*range(100_000)).to_json())) < 100
