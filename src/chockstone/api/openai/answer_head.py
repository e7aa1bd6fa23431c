"""Answer heads: what all parts of one answer have in common, and what it used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from chockstone.api.chat.generation import TextGeneration
from chockstone.api.chat.served_model import NamedModel
from chockstone.engine.conversations import KeptConversation
from chockstone.engine.conversations.answers import new_conversation_id, time_of


@dataclass(frozen=True, slots=True)
class AnswerHead:
    answer_id: str
    model: str  # as the client named it
    created_at: int
    fingerprint: str | None  # of the weights; None: the base model

    @classmethod
    def make(cls, prefix: str, model: NamedModel) -> AnswerHead:
        now = datetime.now(UTC)
        answer_id = new_conversation_id(prefix, now)
        return cls(answer_id, model.name, int(now.timestamp()), _fingerprint(model.source.seal))

    @classmethod
    def of(cls, kept: KeptConversation) -> AnswerHead:
        """Of an answer that was stored."""
        answer = kept.answer
        created_at = int(time_of(kept.conversation_id).timestamp())
        return cls(kept.conversation_id, answer.model, created_at, _fingerprint(answer.weights_digest))

    def call_id(self, choice: int, place: int) -> str:
        """Of a call of a tool: the same whenever it is asked for."""
        return f"call_{self._number}_{choice}_{place}"

    def item_id(self, kind: str, place: int) -> str:
        """Of an item of a response."""
        return f"{kind}_{self._number}_{place}"

    @property
    def _number(self) -> str:
        return re.sub(r"^[a-z]+[-_]", "", self.answer_id)[:32]

    def to_json(self, kind: str) -> dict[str, Any]:  # Any: plain JSON
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created_at,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def _fingerprint(seal: str | None) -> str | None:
    return None if seal is None else f"fp_{seal[:16]}"


def usage_of(*generations: TextGeneration) -> dict[str, Any]:  # Any: plain JSON
    prompt = sum(len(each.prompt_tokens) for each in generations)
    completion = sum(each.completion_tokens for each in generations)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens or 0 for each in generations)},
    }
