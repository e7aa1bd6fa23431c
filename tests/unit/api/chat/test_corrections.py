from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chockstone.api.chat.corrections import encode_correction
from chockstone.api.tokenizers.tokenizer_service import TokenizerService
from support.chat import make_chat_model, tokens_of


@pytest.fixture
def tokenizers() -> Iterator[TokenizerService]:
    made = TokenizerService()
    yield made
    made.close()


async def test_a_correction_ends_as_the_sampled_answer_did(tokenizers: TokenizerService, tmp_path: Path) -> None:
    model = make_chat_model(tmp_path / "model")
    text, end = tokens_of(model, "it is 4"), tokens_of(model, "<|eot_id|>")

    ended = await encode_correction(tokenizers, model, "it is 4", sampled=[5, *end])
    cut_off = await encode_correction(tokenizers, model, "it is 4", sampled=[*end, text[0]])
    nothing = await encode_correction(tokenizers, model, "it is 4", sampled=[])

    assert ended == (*text, *end)
    assert cut_off == nothing == tuple(text)
