"""What is told about an attempt stays the same in all of them where it must."""

from __future__ import annotations

import pytest

from chockstone.integrations.flyte.identity import identity, read_attempt
from support.integrations.flyte_attempts import Root

ROOT = Root("s3://bucket/raw")


def environment(attempt: int) -> dict[str, str]:
    page = f"https://flyte/console/projects/p/domains/d/executions/e/nodeId/n0-0-n3-{attempt}/nodes"
    return {
        "FLYTE_INTERNAL_EXECUTION_PROJECT": "p",
        "FLYTE_INTERNAL_EXECUTION_DOMAIN": "d",
        "FLYTE_INTERNAL_EXECUTION_ID": "e",
        "FLYTE_INTERNAL_TASK_NAME": "module.train",
        "FLYTE_ATTEMPT_NUMBER": str(attempt),
        "FLYTE_EXECUTION_URL": page,
    }


def test_attempts_of_a_task_have_one_identity() -> None:
    found = [identity(environment(attempt)) for attempt in (0, 1, 9, 10, 123)]

    assert found[0] == {"project": "p", "domain": "d", "execution": "e", "task": "module.train", "node": "n0-0-n3"}
    assert all(each == found[0] for each in found)


def test_a_node_that_cannot_be_told_from_its_attempt_is_left_out() -> None:
    environ = {**environment(3), "FLYTE_EXECUTION_URL": "https://flyte/executions/e/nodeId/n0-3-of-5/nodes"}

    assert "node" not in identity(environ)


def test_older_names_of_the_variables_are_known() -> None:
    assert identity({"_F_PRJ": "p", "_F_DM": "d", "_F_NM": "e", "_F_TK_NM": "t"}) == {
        "project": "p", "domain": "d", "execution": "e", "task": "t",
    }  # fmt: skip


def test_the_platforms_path_has_its_number_where_it_is_known() -> None:
    facts = read_attempt(ROOT.path(3), ROOT.path(2), {})

    assert [(each.origin, each.attempt) for each in facts.candidates] == [
        ("platform", 2), ("derived", 2), ("derived", 1), ("derived", 0),
    ]  # fmt: skip
    assert facts.attempt == 3
    assert not any(each.may_be_foreign for each in facts.candidates)


def test_F10_at_the_first_attempt_the_platforms_path_may_be_of_another_execution() -> None:
    (candidate,) = read_attempt(ROOT.path(0), ROOT.path(4, "recovered-n0"), {}).candidates

    assert candidate.may_be_foreign


@pytest.mark.parametrize(("number", "expected"), [(None, True), ("0", True), ("2", False)])
def test_F03_of_an_unknown_layout_only_the_platforms_is_taken(number: str | None, expected: bool) -> None:
    environ = {} if number is None else {"FLYTE_ATTEMPT_NUMBER": number}

    facts = read_attempt("s3://bucket/a", "s3://bucket/b", environ)

    assert [(each.uri, each.may_be_foreign) for each in facts.candidates] == [("s3://bucket/b", expected)]
    assert facts.attempt is None
    assert "no older attempts are derived" in facts.notes[0]


def test_F08_a_variable_that_says_another_number_is_only_noted() -> None:
    facts = read_attempt(ROOT.path(3), None, {"FLYTE_ATTEMPT_NUMBER": "5"})

    assert facts.attempt == 3
    assert "the path counts" in facts.notes[0]
