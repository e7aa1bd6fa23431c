from __future__ import annotations

from typing import Any

import pytest

from chockstone.engine.journal.journal import JournalDamaged, Record
from chockstone.engine.runs.commands import CloseRun, Command, OpenRun, StepOptimizer, UnknownCommand
from chockstone.engine.runs.journal_contents import read_contents
from chockstone.engine.runs.used_seq_ids import UsedSeqIds

HEAD = {"kind": "head", "run": {"run_id": "r"}, "numbers": UsedSeqIds().to_json(), "seals": {"a": "seal"}}


def records(*heads: dict[str, Any], first: int = 1) -> list[Record]:
    """Records with these heads, one after the other; an empty head is damaged."""
    return [Record(first + n, head, 0, None if head else "block 3") for n, head in enumerate(heads)]


def asked(command: Command, seq_id: int, **more: Any) -> dict[str, Any]:
    head = {"kind": "operation", "word": command.name, "values": command.to_json(), "seq_id": seq_id}
    return head | {"request_id": f"r:{seq_id}"} | more


def told(sequence: int, *, is_failure: bool = False) -> dict[str, Any]:
    head = {"kind": "result", "of": sequence, "request_id": "r:1", "is_failure": is_failure}
    return head | {"digest": "00000000000000ff", "facts": {}}


def test_operations_have_their_results_and_those_before_a_result_were_begun() -> None:
    contents = read_contents(
        records(HEAD, asked(OpenRun(), 0), asked(StepOptimizer({}), 1), told(3), asked(StepOptimizer({}), 2))
    )

    first, second, third = contents.operations
    assert (contents.facts, contents.seals) == ({"run_id": "r"}, {"a": "seal"})
    assert (first.outcome, first.is_begun) == (None, True)
    assert second.outcome is not None and (second.outcome.digest, second.result_sequence) == (255, 4)
    assert (third.outcome, third.is_begun, third.request.is_old) == (None, False, True)
    assert [operation.sequence for operation, _ in contents.results] == [3]
    assert contents.used_seq_ids.has(2) and not contents.used_seq_ids.has(3)


@pytest.mark.parametrize(
    ("commands", "is_failure", "expected"),
    [
        ([], False, False),
        ([OpenRun()], False, True),
        ([OpenRun()], True, False),
        ([OpenRun(), StepOptimizer({})], False, True),
        ([OpenRun(), CloseRun()], False, False),
    ],
)
def test_a_run_that_was_never_opened_or_is_closed_is_not_worth_recovering(
    commands: list[Command], is_failure: bool, expected: bool
) -> None:
    operations = [asked(command, number) for number, command in enumerate(commands)]
    results = [told(2 + number, is_failure=is_failure) for number in range(len(commands))]

    assert read_contents(records(HEAD, *operations, *results)).is_worth_recovering == expected


def test_attempts_are_counted_and_other_records_are_loose() -> None:
    tries = [{"kind": "attempt", "of": 2}, {"kind": "attempt", "of": 2}]

    contents = read_contents(records(HEAD, asked(OpenRun(), 0), *tries, {"kind": "of a newer version"}))

    assert [operation.attempts for operation in contents.operations] == [2]
    assert contents.loose == [3, 4, 5]


def test_a_damaged_record_is_an_operation_unless_it_can_only_be_a_result() -> None:
    opened, stepped = asked(OpenRun(), 0), asked(StepOptimizer({}), 1)

    lost_operation = read_contents(records(HEAD, opened, told(2), {}))
    lost_result = read_contents(records(HEAD, opened, {}, stepped, told(4)))

    assert [type(each.command) for each in lost_operation.operations] == [OpenRun, UnknownCommand]
    assert lost_operation.operations[1].request.damage == "block 3"
    assert [type(each.command) for each in lost_result.operations] == [OpenRun, StepOptimizer]
    assert lost_result.loose == [3]


def test_a_result_without_its_operation_is_kept_for_clients() -> None:
    [(operation, record)] = read_contents(records(HEAD, told(1), first=7)).results

    assert (operation.sequence, operation.is_covered, record.sequence) == (1, True, 8)


def test_a_segment_that_was_deleted_leaves_a_gap() -> None:
    before, after = records(HEAD, asked(OpenRun(), 0)), records(HEAD, asked(StepOptimizer({}), 5), first=6)

    assert read_contents([*before, *after]).has_gaps
    assert not read_contents([*before, *records(HEAD, asked(StepOptimizer({}), 5), first=3)]).has_gaps


def test_counts_are_the_largest_that_any_record_tells() -> None:
    contents = read_contents(records(HEAD | {"count": 9, "newest": 40}, asked(OpenRun(), 0, count=3)))

    assert (contents.acknowledged_operations, contents.newest_operation) == (9, 40)


def test_without_a_head_nothing_can_be_read() -> None:
    with pytest.raises(JournalDamaged, match="no head"):
        read_contents(records(asked(OpenRun(), 0)))


def test_an_operation_has_the_origin_that_was_recorded_or_none() -> None:
    known = asked(StepOptimizer({}), 1, origin={"request": "r-1"})
    foreign = asked(StepOptimizer({}), 2, origin="?")

    contents = read_contents(records(HEAD, asked(OpenRun(), 0), known, foreign))

    assert [each.request.origin.request_id for each in contents.operations] == [None, "r-1", None]
