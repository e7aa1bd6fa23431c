"""Prompts as text and as tokens: some servers take texts alone, and all are to read the same tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass
from string import ascii_lowercase

from tokenizers import Tokenizer

from benchmarks.live.models import Model, Tokens


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str
    tokens: Tokens  # of the text


def draw_prompts(model: Model, count: int, length: int, *, seed: int) -> list[Prompt]:
    """``length`` is in tokens."""
    tokenizer = Tokenizer.from_file(str(model.directory / "tokenizer.json"))
    source = random.Random(seed)
    prompts: list[Prompt] = []
    while len(prompts) < count:
        letters = "".join(source.choices(ascii_lowercase + "   ", k=8 * length))
        tokens = tokenizer.encode(letters).ids[:length]
        text = tokenizer.decode(tokens)
        if len(tokens) == length and tokenizer.encode(text).ids == tokens:  # not where the cut splits a token
            prompts.append(Prompt(text, tokens))
    return prompts
