"""Corrections: the tokens of a text that should have been the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chockstone.api.tokenizers.tokenizer_service import TokenizerService


async def encode_correction(
    tokenizers: TokenizerService, directory: Path, text: str, *, sampled: Sequence[int], owner: str = ""
) -> tuple[int, ...]:
    """As the model would have written it: without tokens that begin a text, and ended as the sampled answer was.

    ``sampled``: the tokens of that answer. Raises TokenizerFailed.
    """
    encoded = await tokenizers.encode(directory, text, adds_special=False, owner=owner)
    special = (await tokenizers.table(directory, owner=owner)).special
    end = sampled[-1:] if sampled and sampled[-1] in special else ()
    return (*encoded.tokens, *end)
