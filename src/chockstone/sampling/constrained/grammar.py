"""Grammars: constraints that llguidance has compiled for one tokenizer.

A compilation and each mask have limits that count work, not time: what is too complex on one machine is so on every
machine, and on a replay.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from chockstone.sampling.constrained.guide import Grammar, first_line
from chockstone.sampling.constrained.joint_patterns import MAX_JOINT_PATTERNS, count_joint_patterns
from chockstone.sampling.constrained.marked_text import marked_grammar
from chockstone.wire.codecs.samples import Constraint
from chockstone.wire.failures import BadRequest

# Some spaces, or a line break and an indentation: a weak model does not fill its sample with blank lines.
_SPACES: Final = r"[ \t]{0,2}(\n[ \t]{0,32})?"
_OPTIONS: Final[dict[str, Any]] = {  # Any: plain JSON. All are set: a schema may bring its own
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": _SPACES,
    "coerce_one_of": False,
    "lenient": False,
}


def _limits() -> LLParserLimits:
    return LLParserLimits(
        initial_lexer_fuel=500_000,  # of a compilation, about 10 ms
        step_lexer_fuel=100_000,  # of one mask, about 7 ms
        step_max_items=20_000,  # of one mask, about 1 ms
        max_lexer_states=20_000,  # about 40 MB
        max_grammar_size=100_000,
        verbose_errors=False,
    )


class GrammarTokenizer:
    """A model's tokenizer as llguidance needs it. To make it takes about a second with a large vocabulary."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises BadRequest for a tokenizer whose tokens are not known bytes."""
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise BadRequest("this model's tokenizer has no fast version, which constrained decoding needs")
        found = tokenizer.added_tokens_decoder
        self.added = {str(added): token for token, added in found.items()}
        self.free_tokens = frozenset(token for token, added in found.items() if not added.special)
        eos = tokenizer.eos_token_id
        try:
            self.compiled: LLTokenizer = from_tokenizer(tokenizer, eos_token=eos if isinstance(eos, int) else None)
        except ValueError as error:
            raise BadRequest(f"this model's tokenizer does not allow constrained decoding: {error!s:.200}") from error
        self.eos_token = self.compiled.eos_token


def compile_grammar(constraint: Constraint, tokenizer: GrammarTokenizer, *, vocabulary: int) -> Grammar:
    """Raises BadRequest for a schema that is not supported, matches nothing, or is too complex."""
    parsed = json.loads(constraint.schema)
    if count_joint_patterns(parsed) > MAX_JOINT_PATTERNS:
        raise BadRequest(
            f"the schema cannot be used as a constraint: it may ask for more than {MAX_JOINT_PATTERNS} patterns or "
            "formats of one text; combine fewer schemas that have some"
        )
    schema = json.dumps({**parsed, "x-guidance": _OPTIONS}, ensure_ascii=False)
    text = f"{_rules(constraint, tokenizer)}json: %json {schema}\n"
    matcher = LLMatcher(tokenizer.compiled, LLMatcher.grammar_from_lark(text), log_level=0, limits=_limits())
    if not matcher.is_error():
        first = matcher.deep_copy()
        first.compute_bitmask()  # some schemas that match nothing are noticed only here
        matcher = first if first.is_error() else matcher
    if matcher.is_error():
        raise BadRequest(f"the schema cannot be used as a constraint: {first_line(matcher)}")
    return Grammar(matcher, eos_token=tokenizer.eos_token, vocabulary=vocabulary)


def _rules(constraint: Constraint, tokenizer: GrammarTokenizer) -> str:
    prefix, suffix = constraint.prefix.removeprefix(constraint.mark), constraint.suffix
    body = f"{_fixed_text(prefix, tokenizer.added)} json {_fixed_text(suffix, tokenizer.added)}"
    if not constraint.mark:
        return f"start: {body}\n"
    return marked_grammar(
        constraint.mark,
        body=body,
        is_repeated=bool(suffix),
        is_bare=constraint.is_bare,
        added=tokenizer.added,
        free_tokens=tokenizer.free_tokens,
    )


def _fixed_text(text: str, added: dict[str, int]) -> str:
    """Literals, and added tokens such as ``<tool_call>`` by their numbers."""
    if not text:
        return ""
    longest_first = sorted(added, key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if added else [text]
    return " ".join(
        f"<[{added[piece]}]>" if piece in added else json.dumps(piece, ensure_ascii=False) for piece in pieces if piece
    )
