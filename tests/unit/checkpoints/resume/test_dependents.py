"""Dependents: archives that a chain still needs are named to those who remove archives."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chockstone.checkpoints import Resume
from chockstone.checkpoints.resume.dependents import Dependents
from chockstone.checkpoints.retention.chain_facts import NO_CHAIN
from chockstone.checkpoints.retention.policy import Retention

FIRST, SECOND = "attempt-00000.ckpt/000001-0001", "attempt-00001.ckpt/000001-0001"


def state() -> dict[str, object]:
    return {"w": np.zeros(4)}


def two_attempts(root: Path) -> None:
    """The second one only refers to what the first one saved."""
    with Resume(root, attempt=0, retention=Retention()) as resume:
        resume.save(state(), step=5).result()
    with Resume(root, attempt=1) as resume:
        resume.restore(state())


def test_an_archive_that_a_later_attempt_refers_to_is_needed(tmp_path: Path) -> None:
    two_attempts(tmp_path / "run")

    facts = Dependents((tmp_path / "run").as_uri()).chain_facts([FIRST, SECOND])

    assert [each.name for each in facts.dependents[FIRST]] == [SECOND]
    assert facts.references == {SECOND}
    assert facts.superseded == frozenset()
    assert facts.chains[FIRST] == facts.chains[SECOND]


def test_it_is_found_through_the_fence_if_only_the_first_is_asked_for(tmp_path: Path) -> None:
    two_attempts(tmp_path / "run")

    facts = Dependents((tmp_path / "run").as_uri()).chain_facts([FIRST])

    [dependent] = facts.dependents[FIRST]
    assert dependent.place.endswith("attempt-00001")
    assert dependent.name is None, "nobody asked for it by name"


def test_a_copy_of_the_directory_is_read_by_its_own_paths(tmp_path: Path) -> None:
    two_attempts(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")

    facts = Dependents((tmp_path / "moved").as_uri()).chain_facts([FIRST, SECOND])

    assert [each.name for each in facts.dependents[FIRST]] == [SECOND]


def test_archives_of_no_chain_cost_no_request() -> None:
    assert Dependents("s3://nowhere/at-all").chain_facts(["step-1", "folder/step-2"]) is NO_CHAIN
