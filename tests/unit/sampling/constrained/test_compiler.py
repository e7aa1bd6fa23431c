from __future__ import annotations

import sys

import pytest

from chockstone.sampling.constrained import grammar
from chockstone.sampling.constrained.compiler import GrammarCompiler
from chockstone.wire.codecs.samples import Constraint
from chockstone.wire.failures import BadRequest
from support.sampling.making import TOKENIZER, VOCABULARY

OBJECT = Constraint('{"type":"object"}')


def test_a_tokenizer_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = []
    real = grammar.GrammarTokenizer
    monkeypatch.setattr(grammar, "GrammarTokenizer", lambda one: prepared.append(one) or real(one))
    compiler = GrammarCompiler()

    for _ in range(2):
        compiler.compile(TOKENIZER, OBJECT, vocabulary=VOCABULARY).result()
    compiler.close()

    assert prepared == [TOKENIZER]


def test_a_bad_schema_is_the_callers_failure_and_the_next_one_is_compiled() -> None:
    compiler = GrammarCompiler()

    bad = compiler.compile(TOKENIZER, Constraint('{"not":{}}'), vocabulary=VOCABULARY)
    good = compiler.compile(TOKENIZER, OBJECT, vocabulary=VOCABULARY)

    with pytest.raises(BadRequest, match="not"):
        bad.result()
    assert good.result().new_guide(frozenset()).allow().any()
    compiler.close()


def test_without_the_extra_the_caller_reads_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    compiler = GrammarCompiler()

    with pytest.raises(BadRequest, match=r"pip install 'chockstone\[constrained\]'"):
        compiler.compile(TOKENIZER, OBJECT, vocabulary=VOCABULARY).result()
    compiler.close()
