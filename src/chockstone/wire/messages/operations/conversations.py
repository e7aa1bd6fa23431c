"""Conversations: messages to list and read what was stored to train on, and to attach rewards and corrections."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from chockstone.wire.messages.schema import MAX_INT32, Request, Response, Timestamp

_MOST_TEXT: Final = 1 << 20
_MOST_TOKENS: Final = 1 << 20

ChoiceNumber = Annotated[int, Field(ge=0, le=MAX_INT32)]


class RewardRequest(Request):
    reward: float | None  # null removes the reward
    choice: ChoiceNumber | None = None  # may be absent where there is one choice only


class CorrectionRequest(Request):
    """What the answer should have been, as text or as tokens."""

    text: Annotated[str, Field(min_length=1, max_length=_MOST_TEXT)] | None = None
    tokens: (
        Annotated[list[Annotated[int, Field(ge=0, le=MAX_INT32)]], Field(min_length=1, max_length=_MOST_TOKENS)] | None
    ) = None
    choice: ChoiceNumber | None = None  # may be absent where there is one choice only

    @model_validator(mode="after")
    def _is_one(self) -> CorrectionRequest:
        if (self.text is None) == (self.tokens is None):
            raise ValueError("send either text or tokens.")
        return self


class CorrectionEntry(Response):
    tokens: list[int]
    text: str | None = None  # absent: it was given as tokens


class ChoiceFeedback(Response):
    choice: int
    reward: float | None = None
    is_corrected: bool


class ConversationEntry(Response):
    conversation_id: str  # the id of the answer that the client got
    api: Literal["chat.completions", "completions", "responses", "messages"]
    model: str  # as the client named it
    base_model: str
    tinker_path: str | None = None  # absent: the base model, or weights without a name
    weights_digest: str | None = None  # of the archive that was sampled from; absent: the base model
    sampling_session_id: str | None = None  # absent: the request had none
    kept_at: Timestamp
    prompt_tokens: int
    tokens: int  # of all choices
    choices: int
    feedback: list[ChoiceFeedback]  # of the choices that have any
    size_bytes: int  # that count against the quota


class ConversationsResponse(Response):
    conversations: list[ConversationEntry]  # newest first
    next_before: str | None = None  # id to continue before; absent: this is the last page
    count: int  # of all conversations of the caller
    size_bytes: int
    quota_bytes: int  # 0: the server stores none


class ConversationAnswer(Response):
    message: dict[str, Any]  # Any: JSON, as the client got it
    finish_reason: str
    tokens: list[int]  # as they were sampled
    logprobs: list[float | None]  # of these tokens, at the temperature of the request; null: not a finite number
    reward: float | None = None
    correction: CorrectionEntry | None = None


class ConversationResponse(ConversationEntry):
    messages: list[dict[str, Any]]  # Any: JSON; of the request
    tools: list[dict[str, Any]]  # Any: JSON; of the request
    sampling: dict[str, Any]  # Any: JSON; temperature and so on
    metadata: dict[str, str]  # of the request
    prompt: list[int]  # tokens
    answers: list[ConversationAnswer]  # the choices


class ConversationDatumLine(Response):
    """A line of the export."""

    conversation_id: str
    choice: int
    model: str
    base_model: str
    path: str | None
    weights_digest: str | None
    temperature: float | None
    reward: float | None
    corrected: bool
    datum: dict[str, Any]  # Any: JSON of the SDK's Datum
