"""The file of one conversation: two lines of JSON, each with a checksum. The answer comes first, then the feedback.

A line is the XXH3 digest of its JSON in 16 hexadecimal digits, a space, the JSON and a newline. Token ids and
log-probabilities are base64 of 32-bit little-endian numbers, so every bit of them comes out as it went in.
"""

from __future__ import annotations

import json
import re
import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson
import xxhash

from chockstone.engine.conversations.answers import (
    APIS,
    Correction,
    Feedback,
    StoredAnswer,
    StoredChoice,
    is_conversation_id,
)

VERSION: Final = 1
MAX_TOKEN: Final = 2**31 - 1
_LONG_INTEGER: Final = re.compile(rb"[:,\[]-?[0-9]{19}")


class ConversationDamaged(Exception):
    """The file cannot be read as a conversation of this owner."""


class ConversationTooNew(Exception):
    """A later version wrote the file."""


def encode(answer: StoredAnswer, feedback: Mapping[int, Feedback], *, kept_at: datetime) -> bytes:
    """The whole file. Raises ValueError for what JSON, or 32 bits, cannot hold."""
    head = {
        "conversation": VERSION,
        "conversation_id": answer.conversation_id,
        "owner": answer.owner,
        "kept_at": kept_at.timestamp(),
        "api": answer.api,
        "model": answer.model,
        "base_model": answer.base_model,
        "path": answer.path,
        "weights_digest": answer.weights_digest,
        "sampler": answer.sampler,
        "prompt_tokens": _pack_numbers("i", answer.prompt_tokens),
        "messages": [dict(message) for message in answer.messages],
        "tools": [dict(tool) for tool in answer.tools],
        "sampling": dict(answer.sampling),
        "metadata": dict(answer.metadata),
        "choices": [
            {
                "tokens": _pack_numbers("i", choice.tokens),
                "logprobs": _pack_numbers("f", choice.logprobs),
                "finish_reason": choice.finish_reason,
                "message": dict(choice.message),
            }
            for choice in answer.choices
        ],
    }
    return _pack(head) + _pack(_feedback_to_json(feedback))


def decode(content: bytes, *, owner: str, conversation_id: str) -> tuple[StoredAnswer, datetime, dict[int, Feedback]]:
    """Raises ConversationDamaged, ConversationTooNew."""
    lines = content.split(b"\n")
    if len(lines) != 3 or lines[2]:
        raise ConversationDamaged("it is not of two lines")
    head, attached = _unpack(lines[0]), _unpack(lines[1])
    try:
        if head["conversation"] != VERSION:
            raise ConversationTooNew(f"it is of version {head['conversation']!r:.40}")
        answer = _answer_from_json(head)
        kept_at = datetime.fromtimestamp(head["kept_at"], UTC)
        feedback = _feedback_from_json(attached)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError, OSError) as error:
        raise ConversationDamaged(f"it is no conversation: {error!r:.200}") from error
    if answer.owner != owner or answer.conversation_id != conversation_id:
        raise ConversationDamaged("it is another conversation")
    return answer, kept_at, feedback


def _answer_from_json(head: dict[str, Any]) -> StoredAnswer:  # Any: plain JSON
    if head["api"] not in APIS or not is_conversation_id(head["conversation_id"]):
        raise ValueError("its API or its id is not known")
    return StoredAnswer(
        conversation_id=head["conversation_id"],
        owner=head["owner"],
        api=head["api"],
        model=head["model"],
        base_model=head["base_model"],
        path=head["path"],
        weights_digest=head["weights_digest"],
        sampler=head["sampler"],
        prompt_tokens=_unpack_numbers("i", head["prompt_tokens"]),
        messages=tuple(head["messages"]),
        tools=tuple(head["tools"]),
        sampling=head["sampling"],
        metadata=head["metadata"],
        choices=tuple(
            StoredChoice(
                tokens=_unpack_numbers("i", choice["tokens"]),
                logprobs=_unpack_numbers("f", choice["logprobs"]),
                finish_reason=choice["finish_reason"],
                message=choice["message"],
            )
            for choice in head["choices"]
        ),
    )


def _feedback_to_json(feedback: Mapping[int, Feedback]) -> dict[str, Any]:  # Any: plain JSON
    found: dict[str, Any] = {}
    for choice, given in feedback.items():
        correction = given.correction
        found[str(choice)] = {
            "reward": given.reward,
            "correction": None
            if correction is None
            else {"tokens": _pack_numbers("i", correction.tokens), "text": correction.text},
        }
    return found


def _feedback_from_json(found: dict[str, Any]) -> dict[int, Feedback]:  # Any: plain JSON
    feedback = {}
    for choice, given in found.items():
        made = given["correction"]
        correction = None if made is None else Correction(_unpack_numbers("i", made["tokens"]), made["text"])
        feedback[int(choice)] = Feedback(given["reward"], correction)
    return feedback


def _pack_numbers(kind: str, numbers: Sequence[int] | Sequence[float]) -> str:
    try:
        packed = array(kind, numbers)
    except OverflowError as error:
        raise ValueError(f"a token is not between 0 and {MAX_TOKEN}") from error
    if sys.byteorder != "little":
        packed.byteswap()
    return b64encode(packed.tobytes()).decode()


def _unpack_numbers(kind: str, encoded: str) -> tuple[Any, ...]:  # Any: ints or floats, as ``kind`` says
    numbers = array(kind)
    numbers.frombytes(b64decode(encoded, validate=True))
    if sys.byteorder != "little":
        numbers.byteswap()
    return tuple(numbers)


def _pack(record: dict[str, Any]) -> bytes:  # Any: plain JSON
    try:
        content = orjson.dumps(record)
    except TypeError:
        content = _pack_long_integers(record)
    return b"%016x %b\n" % (xxhash.xxh3_64_intdigest(content), content)


def _pack_long_integers(record: dict[str, Any]) -> bytes:  # Any: plain JSON
    """By Python, which writes integers of more than 64 bits: arguments of calls may have them."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"it holds what JSON cannot: {error}") from error


def _unpack(line: bytes) -> dict[str, Any]:  # Any: plain JSON
    """Raises ConversationDamaged."""
    if line[16:17] != b" " or line[:16] != b"%016x" % xxhash.xxh3_64_intdigest(line[17:]):
        raise ConversationDamaged("the checksum of a line is wrong")
    try:
        has_long_integers = _LONG_INTEGER.search(line, 17) is not None  # which orjson would round
        record = json.loads(line[17:]) if has_long_integers else orjson.loads(line[17:])
    except ValueError as error:
        raise ConversationDamaged(f"a line is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ConversationDamaged("a line is no object")
    return record
