"""The settings of a resume as its report holds them."""

from __future__ import annotations

from chockstone.checkpoints.resume.walk.rules import ResumeRules


def test_settings_are_read_back_and_keep_the_key_that_earlier_versions_wrote() -> None:
    rules = ResumeRules(on_unreadable="older", legacy="reject", flyte_native="tree", poison_after=3)

    assert list(rules.as_json()) == [
        "on_unreadable",
        "legacy",
        "stock",
        "poison_after",
        "deadline_seconds",
        "fresh_start",
    ]
    assert rules.as_json()["stock"] == "tree"
    assert ResumeRules.from_json(rules.as_json()) == rules


def test_a_value_that_is_not_known_is_the_default() -> None:
    hostile = {"on_unreadable": [], "legacy": 3, "stock": "table", "poison_after": True, "fresh_start": True}

    assert ResumeRules.from_json(hostile) == ResumeRules()
