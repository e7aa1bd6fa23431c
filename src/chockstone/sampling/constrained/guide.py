"""Guides: which tokens may come next in one sample with a constraint, and the compiled grammar that its samples share.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from chockstone.wire.failures import BadRequest

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Guide:
    """``allow`` and ``accept`` alternate, once per token. All methods are for one thread."""

    def __init__(
        self, new_matcher: Callable[[], LLMatcher], *, stop_tokens: frozenset[int], eos_token: int, vocabulary: int
    ) -> None:
        """``stop_tokens`` end the sample, and are allowed where the text may end. ``eos_token`` is the one of the
        matcher itself."""
        self._new_matcher = new_matcher
        self._matcher: LLMatcher | None = None  # made when the sample starts: a request may have thousands
        self._stop_tokens = np.array(sorted(token for token in stop_tokens if token < vocabulary), dtype=np.int64)
        self._eos_token = eos_token
        self._vocabulary = vocabulary

    def allow(self) -> npt.NDArray[np.bool_]:
        """[V]: the tokens that may come next, at least one. Raises BadRequest for a grammar that is too complex."""
        if self._matcher is None:
            self._matcher = self._new_matcher()
        matcher = self._matcher
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed_V = np.zeros(self._vocabulary, np.bool_)
        allowed_V[: len(bits)] = bits[: self._vocabulary]
        if matcher.is_error():
            raise BadRequest(f"the constraint is too complex to follow: {first_line(matcher)}; simplify the schema")
        if self._eos_token < self._vocabulary:
            allowed_V[self._eos_token] = False
        if matcher.is_accepting():
            allowed_V[self._stop_tokens] = True
        if not allowed_V.any():
            raise BadRequest("no token of this model can continue the text that the constraint asks for")
        return allowed_V

    def accept(self, token: int) -> bool:
        """Whether the text is complete, with no stop token to say so. Call it for all tokens but those that stop."""
        assert self._matcher is not None, "a token is chosen among those that are allowed"
        self._matcher.consume_token(token)
        return not len(self._stop_tokens) and self._matcher.is_stopped() and not self._matcher.is_error()


class Grammar:
    """Many samples may share it."""

    def __init__(self, matcher: LLMatcher, *, eos_token: int, vocabulary: int) -> None:
        self._matcher = matcher  # never advanced
        self._eos_token = eos_token
        self._vocabulary = vocabulary

    def new_guide(self, stop_tokens: frozenset[int]) -> Guide:
        return Guide(
            self._matcher.deep_copy, stop_tokens=stop_tokens, eos_token=self._eos_token, vocabulary=self._vocabulary
        )


def first_line(matcher: LLMatcher) -> str:
    """Of its error: the further ones show its state."""
    return matcher.get_error().partition("\n")[0][:300]
