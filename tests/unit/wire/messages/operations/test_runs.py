from __future__ import annotations

from typing import get_args

from chockstone.wire.messages.operations.runs import LineageRun, OperatedRun, OperatedRunResponse, RunSort


def test_every_order_goes_both_ways() -> None:
    orders = set(get_args(RunSort))

    assert {f"-{each}" for each in orders if not each.startswith("-")} | {
        each.removeprefix("-") for each in orders if each.startswith("-")
    } == orders


def test_one_run_has_all_fields_of_a_row() -> None:
    assert set(OperatedRun.model_fields) < set(OperatedRunResponse.model_fields)


def test_a_run_that_the_caller_may_not_see_has_its_id_alone() -> None:
    assert LineageRun(run_id="s:train:0", depth=1, is_visible=False).encode() == (
        b'{"run_id":"s:train:0","depth":1,"is_visible":false}'
    )
