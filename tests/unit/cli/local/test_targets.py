from __future__ import annotations

from pathlib import Path

import pytest

from support.cli.store_commands import run


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["show", "{store}"], 2, "is a store, not an archive file"),
        (["show", "{store}", "run-1/nope"], 1, "is not in file://"),
        (["show", "{store}", "../x"], 2, "cannot name a checkpoint"),
        (["show", "{store}/run-1/nope.tar"], 1, "there is no archive file"),
        (["show", "{store}/run-1/step-00000000.tar", "x"], 2, "is an archive, not a store"),
        (["ls", "{store}/run-1/step-00000000.tar"], 2, "is an archive, not a store"),
        (["ls", ""], 2, "empty text"),
        (["ls", "http://host/x"], 2, "is not a store"),
        (["ls", "{store}/run-1/step-00000000.tar/below"], 3, "not a directory"),
        (["verify", "{store}", "run-1/nope", "--prefix", "x"], 2, "--prefix"),
        (["verify", "{store}", "--policy", "off"], 2, "policy"),
        (["export", "{store}", "run-1/step-00000000", "{store}/no/where"], 2, "to export into"),
        (["diff", "{store}", "run-1/step-00000000"], 2, "is a store, not an archive file"),
        (["show", "s3://only-a.tar"], 2, "is not the URL of an archive"),
    ],
)
def test_mistakes_are_explained_in_a_sentence(store: Path, words: list[str], code: int, complaint: str) -> None:
    result = run(*(word.format(store=store) for word in words))

    assert result.exit_code == code
    assert complaint in result.stderr
    assert "Traceback" not in result.output
