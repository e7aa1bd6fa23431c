from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from tokenizers import AddedToken

from chockstone.sampling.constrained.grammar import GrammarTokenizer, compile_grammar
from chockstone.wire.codecs.samples import Constraint
from support.sampling.making import EOS, VOCABULARY, make_tokenizer

SCHEMA = json.dumps({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]})
TAGGED = Constraint(SCHEMA, "<call>\n", "\n</call>", "<call>")
BARE = Constraint(SCHEMA, "<call>", "", "<call>", is_bare=True)
ENDED = Constraint(SCHEMA, "<call>", "", "<call>")
GOOD, BAD = '{"a": 1}', '{"a": 3'


def follows(constraint: Constraint, *texts: str, added: Sequence[str] = ("<call>", "</call>", "<think>")) -> bool:
    """Whether the texts, each encoded for itself, are allowed one after the other, and the stop after them."""
    own = make_tokenizer()
    own.add_tokens([AddedToken(text, special=False) for text in added])
    own.add_tokens([AddedToken("<hidden>", special=True)])
    guide = compile_grammar(constraint, GrammarTokenizer(own), vocabulary=VOCABULARY).new_guide(frozenset({EOS}))
    for token in [token for text in texts for token in own.encode(text)]:
        if not guide.allow()[token]:
            return False
        guide.accept(token)
    return bool(guide.allow()[EOS])


@pytest.mark.parametrize(
    ("texts", "is_right"),
    [
        ([], True),
        (["a <cal> {b}"], True),
        (["<think>a</call>\n"], True),
        (["<call>\n", GOOD, "\n</call>"], True),
        (["a\n<call>\n", GOOD, "\n</call>", "b<call>\n", GOOD, "\n</call>\n"], True),
        (["<call>"], False),
        (["<call>\n", GOOD], False),
        (["<call>\n", BAD], False),
        (["<call>{"], False),
        (["<call>\n", GOOD, "\n</call><call>\n", BAD], False),
        (["<hidden>"], False),
        (["<ca", "ll", ">\n", BAD], False),  # the same, spelled out
        (["a<", "call>\n", BAD], False),
        (["<ca", "ll", ">\n", GOOD, "\n</call>"], True),
    ],
)
def test_json_follows_each_mark_and_all_else_is_free(texts: list[str], is_right: bool) -> None:
    assert follows(TAGGED, *texts) == is_right
    assert follows(TAGGED, *texts, added=()) == is_right


@pytest.mark.parametrize(
    ("texts", "is_right"),
    [
        (["a"], True),
        (["a<call>", GOOD], True),
        (["<call>", GOOD], True),
        (["a<call>", GOOD, "b"], False),
        (["a<call>", BAD], False),
        (["{b"], None),
    ],
)
def test_json_without_a_suffix_ends_the_text(texts: list[str], is_right: bool | None) -> None:
    assert follows(ENDED, *texts) == (is_right is not False)
    assert follows(BARE, *texts) == bool(is_right)


@pytest.mark.parametrize(
    ("texts", "is_right"),
    [
        ([], True),
        ([" \n"], True),
        ([GOOD], True),
        ([" ", GOOD, "; ", GOOD], True),
        (["<think>{"], True),
        ([" <call>", GOOD], True),
        ([BAD], False),
        (["\u2003", BAD], False),
        (["\x1c", BAD], False),
        ([GOOD, "; ", BAD], False),
        ([GOOD, " a"], False),
        ([" <", "call>", BAD], False),
    ],
)
def test_a_bare_text_that_begins_with_a_brace_is_json(texts: list[str], is_right: bool) -> None:
    assert follows(BARE, *texts) == is_right
