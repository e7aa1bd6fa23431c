"""Answers to keep, as an endpoint hands them over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from chockstone.engine.conversations import StoredAnswer, StoredChoice
from chockstone.engine.conversations.answers import new_conversation_id
from support.engine.making import NOW

PROMPT: Final = (5, 6, 7)


def stored_choice(tokens: tuple[int, ...] = (8, 9), logprobs: tuple[float, ...] | None = None) -> StoredChoice:
    if logprobs is None:
        logprobs = tuple(np.linspace(-0.1, -3.3, len(tokens), dtype=np.float32).tolist())
    message = {"role": "assistant", "content": "it is 4"}
    return StoredChoice(tokens=tokens, logprobs=logprobs, finish_reason="stop", message=message)


def stored_answer(owner: str = "ada", **facts: Any) -> StoredAnswer:  # Any: fields of the answer
    answer = StoredAnswer(
        conversation_id=new_conversation_id("chatcmpl-", NOW),
        owner=owner,
        api="chat.completions",
        model="prod",
        base_model="tiny",
        path="tinker://s:train:0/sampler_weights/s1",
        weights_digest="ab" * 32,
        sampler="s:sample:0",
        prompt_tokens=PROMPT,
        messages=[{"role": "user", "content": "2 + 2?"}],
        choices=[stored_choice()],
        sampling={"temperature": 1.0},
    )
    return replace(answer, **facts)
