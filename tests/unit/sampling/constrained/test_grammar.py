from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedTokenizerFast

from chockstone.sampling.constrained.grammar import GrammarTokenizer, compile_grammar
from chockstone.sampling.constrained.guide import Grammar
from chockstone.wire.codecs.sample_request import decode_constraint
from chockstone.wire.codecs.samples import Constraint
from chockstone.wire.failures import BadRequest
from support.sampling.making import EOS, TOKENIZER, VOCABULARY, make_tokenizer

MANY = {f"p{i}": {"type": "string"} for i in range(1000)}
DOUBLED: dict[str, Any] = {
    **{f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)},
    "d40": {"type": "object", "properties": {"a": {"type": "string"}}},
}
HOSTILE: dict[str, dict[str, Any]] = {
    "itself": {"allOf": [{"$ref": "#"}]},
    "a loop": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "nothing there": {"$ref": "#/$defs/x"},
    "another host": {"$ref": "http://127.0.0.1:9/schema"},
    "a file": {"$ref": "file:///etc/passwd"},
    "a product": {
        "allOf": [
            {"anyOf": [{"type": "object", "properties": {f"x{i}{j}": {"type": "string"}}} for j in range(10)]}
            for i in range(6)
        ]
    },
    "a multiple": {"type": "integer", "multipleOf": 982451653},
    "a range": {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
    "long patterns": {"type": "string", "pattern": "^(ab|cd|[x-z]*)*q$", "minLength": 500, "maxLength": 100000},
    "overlapping names": {
        "type": "object",
        "patternProperties": {f"^(a|b)*a(a|b){{{i}}}$": {"type": "string"} for i in range(30)},
    },
    "many patterns of one text": {"allOf": [{"type": "string", "pattern": f".*{c}.*"} for c in "abcdefghijklmnopqrst"]},
    "no value": {"enum": []},
    "impossible": {"type": "object", "properties": {"a": False}, "required": ["a"]},
    "unknown words": {"not": {"type": "string"}},
    "own options": {"type": "object", "not": {}, "x-guidance": {"lenient": True}},
}
HEAVY: dict[str, dict[str, Any]] = {
    "a thousand optional properties": {"type": "object", "properties": MANY},
    "a thousand required properties": {"type": "object", "properties": MANY, "required": list(MANY)},
    "many values": {"enum": [f"value {i}" for i in range(9_000)]},
    "doubled references": {"$ref": "#/$defs/d0", "$defs": DOUBLED},
    "backtracking": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}},
    "counted": {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "^(.{0,1000}a.{0,1000}){0,1000}$"}},
    },
    "a large automaton": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a|b)*a(a|b){30}"}}},
    "a very long text": {"type": "object", "properties": {"a": {"type": "string", "minLength": 10**9}}},
    "very many items": {"type": "object", "properties": {"a": {"type": "array", "minItems": 10**9}}},
}


@pytest.fixture(scope="module")
def tokenizer() -> GrammarTokenizer:
    return GrammarTokenizer(TOKENIZER)


def compiled(tokenizer: GrammarTokenizer, schema: dict[str, Any]) -> Grammar:
    constraint = decode_constraint({"json_schema": schema}, "constraint")
    assert constraint is not None
    return compile_grammar(constraint, tokenizer, vocabulary=VOCABULARY)


def follows(grammar: Grammar, tokens: list[int], *, stop: int = EOS) -> bool:
    """Whether each of the tokens is allowed, and the stop after them."""
    guide = grammar.new_guide(frozenset({stop}))
    for token in tokens:
        if not guide.allow()[token]:
            return False
        guide.accept(token)
    return bool(guide.allow()[stop])


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ('{"a":12,"b":["x","yy"]}', True),
        ('{"a": 12,\n  "b": []}', True),
        ('{"a":12}', False),  # b is required
        ('{"a":"12","b":[]}', False),
        ('{"a":1,"b":[],"c":1}', False),
        ('{"a":1,"b":[]}\n', False),
        ('{"a":' + " " * 3 + '1,"b":[]}', False),  # more spaces than a person writes
    ],
)
def test_exactly_the_texts_of_the_schema_are_allowed(tokenizer: GrammarTokenizer, text: str, is_right: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"enum": ["x", "yy"]}}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }

    assert follows(compiled(tokenizer, schema), TOKENIZER.encode(text)) == is_right


def test_fixed_text_surrounds_the_json_and_added_tokens_in_it_are_tokens() -> None:
    own = make_tokenizer()
    own.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=True)])
    begin, end = own.convert_tokens_to_ids(["<tool_call>", "</tool_call>"])
    constraint = Constraint('{"type":"object"}', '<tool_call>\n"é\\', "\n</tool_call>")
    grammar = compile_grammar(constraint, GrammarTokenizer(own), vocabulary=VOCABULARY)

    inside = own.encode('\n"é\\{"a": []}\n')
    assert follows(grammar, [begin, *inside, end])
    assert not follows(grammar, inside)
    assert not follows(grammar, [begin, *inside, *TOKENIZER.encode("</tool_call>")])  # spelled out


@pytest.mark.parametrize("name", HOSTILE)
def test_a_schema_that_cannot_be_followed_is_refused(tokenizer: GrammarTokenizer, name: str) -> None:
    with pytest.raises(BadRequest, match="cannot be used as a constraint: ."):
        compiled(tokenizer, HOSTILE[name])


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_schema_takes_little_work_or_is_refused(tokenizer: GrammarTokenizer, name: str) -> None:
    """The limits count work. CPU seconds are generous: without limits some of these would take minutes."""
    begun = time.thread_time()
    try:
        guide = compiled(tokenizer, HEAVY[name]).new_guide(frozenset({EOS}))
        for token in TOKENIZER.encode(json.dumps({"a": "ab" * 20})):
            if not guide.allow()[token]:
                break
            guide.accept(token)
    except BadRequest:
        pass

    assert time.thread_time() - begun < 5


def test_a_tokenizer_without_known_bytes_is_refused() -> None:
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))

    with pytest.raises(BadRequest, match="does not allow constrained decoding"):
        GrammarTokenizer(words)
