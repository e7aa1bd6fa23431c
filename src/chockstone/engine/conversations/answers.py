"""Answers: what is kept of one request and its answer, and what its user attaches to it later.

A conversation is one request with its answer. Its id is the id of the answer that the client gets. Of a talk with
several turns each answer is a conversation of its own: its prompt has the turns before it.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

from chockstone.catalog import RowMissing
from chockstone.wire.failures import BadRequest

Api = Literal["chat.completions", "completions", "responses", "messages"]
APIS: Final[tuple[str, ...]] = get_args(Api)
MAX_REWARD: Final = 1e6  # a larger one is no reward: as an advantage it would leave nothing of the weights
_ID: Final = re.compile(r"[a-z]{1,16}[-_]([0-9a-f]{12})[0-9a-f]{20}")
_ORDER_CHARACTERS: Final = 32


class ConversationMissing(RowMissing):
    """There is no such conversation, or it is another user's; the message does not say which."""

    def __init__(self, conversation_id: str) -> None:
        super().__init__(
            f"conversation {conversation_id!r:.80} is not yours or not there; `chockstone conversations ls` shows yours"
        )


class ConversationsFull(BadRequest):
    """There is no room for another conversation of this user."""


def new_conversation_id(prefix: str, now: datetime) -> str:
    """``prefix``: lower-case letters and ``-`` or ``_``, as the clients of the API know it. Ids sort by time."""
    return f"{prefix}{int(now.timestamp() * 1000):012x}{secrets.token_hex(10)}"


def is_conversation_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def time_of(conversation_id: str) -> datetime:
    """When the id was made."""
    found = _ID.fullmatch(conversation_id)
    assert found is not None, "it was checked"
    return datetime.fromtimestamp(int(found[1], 16) / 1000, UTC)


def order_of(conversation_id: str) -> str:
    """Sorts ids with different prefixes by time."""
    return conversation_id[-_ORDER_CHARACTERS:]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChoice:
    """One of the answers to a request."""

    tokens: Sequence[int]  # as they were sampled, with the stop token if the sampler gave it
    logprobs: Sequence[float]  # of these tokens, in single precision, at the temperature of the request
    finish_reason: str  # as the client got it
    message: Mapping[str, Any]  # Any: plain JSON, as the client got it

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.logprobs), "each token has a log-probability"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """A request with its answer, as it is handed over to be kept."""

    conversation_id: str
    owner: str
    api: Api
    model: str  # as the client named it
    base_model: str
    path: str | None  # tinker:// path that ``model`` stood for; None: the base model itself
    weights_digest: str | None  # seal of the archive that was sampled from; None: the base model itself
    sampler: str | None  # sampling session; None: the request had none
    prompt_tokens: Sequence[int]  # as the sampler got them
    messages: Sequence[Mapping[str, Any]]  # Any: plain JSON; of the request
    choices: Sequence[StoredChoice]
    tools: Sequence[Mapping[str, Any]] = ()  # Any: plain JSON; of the request
    sampling: Mapping[str, Any] = field(default_factory=dict)  # Any: plain JSON; temperature and so on
    metadata: Mapping[str, str] = field(default_factory=dict)  # of the request


@dataclass(frozen=True, slots=True)
class Correction:
    """What the answer should have been."""

    tokens: Sequence[int]
    text: str | None = None  # None: it was given as tokens


@dataclass(frozen=True, slots=True)
class Feedback:
    """What the user attached to one choice."""

    reward: float | None = None
    correction: Correction | None = None


@dataclass(frozen=True, slots=True)
class KeptConversation:
    """A kept answer with what is attached to it."""

    answer: StoredAnswer
    kept_at: datetime
    feedback: Mapping[int, Feedback]  # by the number of the choice
    size_bytes: int  # that count against the quota

    @property
    def conversation_id(self) -> str:
        return self.answer.conversation_id

    def feedback_on(self, choice: int) -> Feedback:
        return self.feedback.get(choice, Feedback())

    def choose(self, choice: int | None) -> int:
        """The number of the choice that is meant; None: the only one. Raises BadRequest."""
        count = len(self.answer.choices)
        if choice is None and count > 1:
            raise BadRequest(f"conversation {self.conversation_id!r} has {count} choices; say which: 0 to {count - 1}")
        if choice is not None and not 0 <= choice < count:
            raise BadRequest(f"conversation {self.conversation_id!r} has no choice {choice}; it has 0 to {count - 1}")
        return choice or 0


def check_reward(reward: float) -> float:
    """Raises BadRequest."""
    if not math.isfinite(reward) or abs(reward) > MAX_REWARD:
        raise BadRequest(f"the reward {reward!r} is not a number between -{MAX_REWARD:g} and {MAX_REWARD:g}")
    return float(reward)
