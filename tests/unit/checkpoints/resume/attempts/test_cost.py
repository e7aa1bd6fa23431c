"""Costs: every request, retry, byte and second once, in the place and in the total."""

from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.checkpoints.resume.attempts.cost import Cost, CostSnapshot, MeteredSource
from chockstone.checkpoints.stores.bucket import traffic
from chockstone.checkpoints.stores.file_source import open_file


def test_a_block_that_sends_nothing_countable_is_one_request_also_when_it_raises() -> None:
    total = Cost()
    cost = Cost(total)

    with cost.request():
        pass
    with pytest.raises(OSError), cost.request():
        raise OSError

    assert cost.requests == total.requests == 2
    assert cost.spent.seconds > 0


def test_requests_that_the_store_counts_are_taken_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = Cost()

    with cost.request():
        monkeypatch.setattr(traffic, "sent", traffic.sent + 3)
        monkeypatch.setattr(traffic, "repeated", traffic.repeated + 2)

    assert (cost.spent.requests, cost.spent.retries) == (3, 2)


def test_the_difference_of_two_costs_is_what_was_spent_in_between() -> None:
    cost = Cost()
    cost.add(1, 10, 1.0)
    before = cost.spent
    cost.add(2, 5, 0.5, retries=1)

    assert cost.spent - before == CostSnapshot(2, 1, 5, 0.5)


def test_reads_of_a_file_are_bytes_and_no_requests(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    cost = Cost()
    source = MeteredSource(open_file(tmp_path / "file"), cost)
    target = bytearray(4)

    source.read_into(3, memoryview(target))
    source.close()

    assert bytes(target) == b"3456"
    assert (cost.spent.requests, cost.spent.bytes) == (0, 4)
