"""What a Flyte 2 task knows of itself: identity, rank, restarts and paths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chockstone.integrations.flyte2.task_context import identity_of, is_restarted, place_of, rank_of

ACTION = SimpleNamespace(org="", project="p", domain="d", run_name="r1", name="a0")


def context(**facts: Any) -> Any:  # Any: of a TaskContext, what is read
    return SimpleNamespace(**{"task_action": None, "action": None, **facts})


def test_the_identity_is_that_of_the_action_and_of_its_task_inside_of_a_trace() -> None:
    expected = {"project": "p", "domain": "d", "run": "r1", "action": "a0"}
    trace = SimpleNamespace(org="", project="p", domain="d", run_name="r1", name="t7")

    assert identity_of(context(action=ACTION)) == expected
    assert identity_of(context(action=trace, task_action=ACTION)) == expected
    assert identity_of(context()) == {}


@pytest.mark.parametrize(("text", "rank"), [("", 0), ("0", 0), ("3", 3), ("x", 0), ("-1", 0)])
def test_a_task_without_a_rank_is_rank_0(text: str, rank: int) -> None:
    assert rank_of({"RANK": text}) == rank
    assert rank_of({}) == 0


@pytest.mark.parametrize(("text", "is_so"), [("", False), ("0", False), ("2", True), ("x", False)])
def test_pods_that_jobset_made_anew_are_a_restart(text: str, is_so: bool) -> None:
    assert is_restarted({"JOBSET_RESTART_ATTEMPT": text}) is is_so


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("/tmp/a b", "/tmp/a b"),
        ("file:///tmp/a%20b", "/tmp/a%20b"),
        ('"s3://b/x"', "s3://b/x"),
        ("abfs://c/x", "az://c/x"),
        ("abfss://c/x", "az://c/x"),
    ],
)
def test_paths_are_read_as_flyte_reads_them(written: str, place: str) -> None:
    assert place_of(written) == place
