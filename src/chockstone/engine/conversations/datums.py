"""Datums: conversations as data for a loss, in the JSON of the Tinker SDK's ``Datum``: one for each sampled answer.

Position i of a datum predicts token i + 1 of prompt and answer. Positions that predict a token of the prompt have
weight, log-probability and advantage 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chockstone.engine.conversations.answers import KeptConversation

LossName = Literal["cross_entropy", "importance_sampling"]


@dataclass(frozen=True, slots=True)
class ConversationDatum:
    conversation: KeptConversation
    choice: int
    is_corrected: bool  # its answer is the correction, and not what was sampled
    datum: dict[str, Any]  # Any: plain JSON

    def to_json(self) -> dict[str, Any]:  # Any: plain JSON
        answer = self.conversation.answer
        return {
            "conversation_id": answer.conversation_id,
            "choice": self.choice,
            "model": answer.model,
            "base_model": answer.base_model,
            "path": answer.path,
            "weights_digest": answer.weights_digest,
            "temperature": answer.sampling.get("temperature", 1.0),
            "reward": self.conversation.feedback_on(self.choice).reward,
            "corrected": self.is_corrected,
            "datum": self.datum,
        }


def datums_of(
    conversation: KeptConversation, loss: LossName, *, min_reward: float | None = None
) -> list[ConversationDatum]:
    """``cross_entropy``: every answer, and where there is a correction the correction instead.

    ``importance_sampling``, whose inputs ``ppo``, ``cispo`` and ``dro`` take, too: the answers that have a reward, as
    they were sampled; the advantage is the reward. ``min_reward`` leaves out answers with less, or with none.
    """
    found = []
    for number, choice in enumerate(conversation.answer.choices):
        given = conversation.feedback_on(number)
        if min_reward is not None and (given.reward is None or given.reward < min_reward):
            continue
        prompt = conversation.answer.prompt_tokens
        if loss == "cross_entropy":
            correction = given.correction
            tokens = choice.tokens if correction is None else correction.tokens
            inputs: dict[str, Sequence[float]] = {"weights": [1.0] * len(tokens)}
        elif given.reward is None or not all(map(math.isfinite, choice.logprobs)):
            continue
        else:
            correction, tokens = None, choice.tokens
            inputs = {"logprobs": choice.logprobs, "advantages": [given.reward] * len(tokens)}
        if prompt and tokens:
            found.append(
                ConversationDatum(conversation, number, correction is not None, _datum(prompt, tokens, inputs))
            )
    return found


def _datum(
    prompt: Sequence[int], answer: Sequence[int], inputs: dict[str, Sequence[float]]
) -> dict[str, Any]:  # Any: plain JSON
    tokens, before = [*prompt, *answer], [0.0] * (len(prompt) - 1)
    fields: dict[str, Any] = {"target_tokens": _tensor(tokens[1:], "int64")}
    for name, values in inputs.items():
        fields[name] = _tensor([*before, *values], "float32")
    return {"model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens[:-1]}]}, "loss_fn_inputs": fields}


def _tensor(values: list[Any], dtype: str) -> dict[str, Any]:  # Any: plain JSON
    return {"data": values, "dtype": dtype, "shape": [len(values)]}
