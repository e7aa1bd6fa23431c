from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.cli.loopback import Loopback


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["ls", "--prefix", "x"], "--prefix belongs to a store"),
        (["ls", ".", "--run", "x"], "belongs to a server"),
        (["ls", "tinker://a", "--run", "b"], "given twice"),
        (["show", "tinker://a/b"], "is not a checkpoint"),
        (["show", "tinker://a/weights/c", "d"], "names one checkpoint"),
        (["rm"], "say which"),
        (["rm", "tinker://a/weights/b", "--run", "a"], "choose among all"),
        (["rm", "tinker://a/weights/b", "x"], "is not a checkpoint"),
        (["rm", ".", "x", "--run", "a"], "belong to a server"),
        (["rm", "."], "name the checkpoints"),
        (["rm", "--older-than", "7x"], "not a duration"),
        (["rm", "--kind", "weights"], "--all takes what all your runs have"),
        (["rm", "tinker://a/weights/b", "--all"], "choose among all"),
        (["gc", "--keep-last", "3"], "`policy set` sets them, and with --dry-run this shows"),
        (["gc", "--sweep-partials"], "are for a store"),
        (["gc", "--keep-best", "loss:sideways", "--dry-run"], "does not say whether the least or the most"),
        (["policy", "set", "--mine", "--keep-best", "loss:3"], "does not say whether the least or the most"),
        (["diff", "tinker://a/weights/b", "tinker://a/weights/c", "d"], "is too much"),
        (["verify", "./a.tar", "tinker://a/weights/c"], "is a server's, where a store or a file is wanted"),
        (["show", "nowhere"], "there is no archive file 'nowhere'"),
        (["gc", ".", "--run", "a"], "belongs to a server"),
        (["export", "tinker://a/weights/b", "c", "--merge"], "needed together"),
        (["export", "tinker://a/weights/b", "c", "d"], "is too much"),
        (["policy", "set", "--keep-last", "1"], "say whose policy"),
        (["policy", "set", "--global"], "name a rule"),
        (["policy", "remove", "--global", "--user", "x"], "one of them"),
        (["ttl", "tinker://a/weights/b", "soon"], "not a duration"),
    ],
)
def test_words_that_do_not_go_together_are_refused_without_a_server(
    words: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    loopback = Loopback("http://127.0.0.1:9", Path(), None, None)  # type: ignore[arg-type]  # nothing is served

    result = loopback.run("checkpoints", *words)

    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "words",
    [
        *(["runs", name] for name in ("ls", "show", "recoveries")),
        *(["keys", name] for name in ("create", "ls", "revoke")),
        *(["checkpoints", name] for name in ("download", "publish", "unpublish", "ttl", "copy", "undelete", "trash")),
        ["checkpoints", "trash", "empty"],
        *(["checkpoints", "policy", name] for name in ("show", "set", "remove")),
        ["storage"],
    ],
    ids=" ".join,
)
def test_help_teaches_by_example_and_names_the_exit_codes(words: list[str]) -> None:
    result = Loopback("http://127.0.0.1:9", Path(), None, None).run(*words, "--help")  # type: ignore[arg-type]  # no server

    assert result.exit_code == 0
    assert re.search(rf"^    chockstone {' '.join(words)}\b", result.stdout, re.MULTILINE)
    assert "Exit codes: 0 fine" in result.stdout
    assert "--json" in result.stdout
