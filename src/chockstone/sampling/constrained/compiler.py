"""The compiler: compiles constraints on a thread of its own, so that sampling and training continue meanwhile."""

from __future__ import annotations

from collections.abc import MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

from chockstone.extras import ExtraMissing, require
from chockstone.sampling.constrained.guide import Grammar
from chockstone.wire.codecs.samples import Constraint
from chockstone.wire.failures import BadRequest

if TYPE_CHECKING:
    from chockstone.sampling.constrained.grammar import GrammarTokenizer


class GrammarCompiler:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "grammars")  # starts with the first constraint
        self._tokenizers: MutableMapping[PreTrainedTokenizerBase, GrammarTokenizer] = WeakKeyDictionary()

    def compile(
        self, tokenizer: PreTrainedTokenizerBase, constraint: Constraint, *, vocabulary: int
    ) -> Future[Grammar]:
        """The future raises BadRequest for a constraint that cannot be followed on this server."""
        return self._thread.submit(self._compile, tokenizer, vocabulary, constraint)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _compile(self, tokenizer: PreTrainedTokenizerBase, vocabulary: int, constraint: Constraint) -> Grammar:
        try:
            require("constrained", "a sample with a constraint")
        except ExtraMissing as error:
            raise BadRequest(f"{error}, on the server") from error
        from chockstone.sampling.constrained.grammar import (  # imports the package
            GrammarTokenizer,
            compile_grammar,
        )

        prepared = self._tokenizers.get(tokenizer)
        if prepared is None:
            prepared = self._tokenizers[tokenizer] = GrammarTokenizer(tokenizer)
        return compile_grammar(constraint, prepared, vocabulary=vocabulary)
