from __future__ import annotations

import numpy as np
import pytest

from chockstone.sampling.constrained.grammar import GrammarTokenizer, compile_grammar
from chockstone.sampling.constrained.guide import Guide
from chockstone.wire.codecs.samples import Constraint
from chockstone.wire.failures import BadRequest
from support.sampling.making import EOS, TOKENIZER, VOCABULARY


def guide_of(schema: str, *stops: int) -> Guide:
    grammar = compile_grammar(Constraint(schema), GrammarTokenizer(TOKENIZER), vocabulary=VOCABULARY)
    return grammar.new_guide(frozenset(stops))


def walk(guide: Guide, text: str) -> list[bool]:
    answers = []
    for token in TOKENIZER.encode(text):
        assert guide.allow()[token]
        answers.append(guide.accept(token))
    return answers


def test_stops_are_allowed_where_the_text_may_end() -> None:
    guide = guide_of('{"type":"integer"}', EOS, 299, VOCABULARY + 5)

    assert not guide.allow()[[EOS, 299]].any()
    assert not any(walk(guide, "-1"))

    allowed = guide.allow()
    assert allowed[[EOS, 299]].all() and allowed[TOKENIZER.encode("2")].all()


def test_a_text_that_cannot_continue_is_complete_by_itself_if_nothing_stops_it() -> None:
    assert walk(guide_of('{"enum":["ab"]}'), '"ab"') == [False, False, False, True]
    assert not any(walk(guide_of('{"enum":["ab"]}', EOS), '"ab"'))


def test_the_tokenizers_own_end_is_no_token_of_the_text() -> None:
    guide = guide_of('{"type":"integer"}')
    walk(guide, "12")

    assert not guide.allow()[EOS]


def test_samples_of_one_grammar_are_independent() -> None:
    grammar = compile_grammar(Constraint('{"enum":["ab","cd"]}'), GrammarTokenizer(TOKENIZER), vocabulary=VOCABULARY)
    one, other = grammar.new_guide(frozenset({EOS})), grammar.new_guide(frozenset({EOS}))

    walk(one, '"a')

    assert np.flatnonzero(one.allow()).tolist() == TOKENIZER.encode("b")
    assert np.flatnonzero(other.allow()).tolist() == TOKENIZER.encode('"')


def test_a_grammar_that_becomes_too_complex_is_the_callers_failure() -> None:
    properties = ",".join(f'"p{i}":{{"type":"string"}}' for i in range(1000))
    guide = guide_of(f'{{"type":"object","properties":{{{properties}}}}}', EOS)

    with pytest.raises(BadRequest, match="too complex"):
        walk(guide, '{"p0":"", "p1":""')
