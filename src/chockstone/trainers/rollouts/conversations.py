"""Conversations that a server stored, as datums of the Tinker SDK, and rewards and corrections for them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

import httpx
from tinker import types

from chockstone.trainers.errors import ConversationsRefused

LossFn = Literal["importance_sampling", "cross_entropy"]
_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ExportedDatum:
    """One answer of a stored conversation, ready for ``forward_backward``."""

    conversation_id: str  # the id of the answer that the client got
    choice: int
    model: str  # as the client named it
    path: str | None  # of the checkpoint that was sampled from; None: the base model
    weights_digest: str | None  # of that checkpoint
    temperature: float | None  # of the request: log-probabilities are those at this temperature
    reward: float | None
    is_corrected: bool  # the answer is the correction, and not what was sampled
    datum: types.Datum


def read_datums(lines: Path | Iterable[str]) -> list[ExportedDatum]:
    """The datums in a file that ``chockstone conversations export`` wrote, or in lines of it."""
    if isinstance(lines, Path):
        with lines.open() as file:
            return [_parse(line) for line in file]
    return [_parse(line) for line in lines]


class ConversationsClient:
    """Reads the stored conversations of one user, and attaches rewards and corrections.

    Use it as a context manager, or call ``close``. All methods raise ConversationsRefused.
    """

    def __init__(self, base_url: str, api_key: str) -> None:
        """``base_url``: of the server, as ``TINKER_BASE_URL`` has it."""
        self._http = httpx.Client(
            base_url=f"{base_url.rstrip('/')}/api/v1/conversations", headers={"X-API-Key": api_key}, timeout=_SECONDS
        )

    def datums(
        self,
        loss_fn: LossFn = "importance_sampling",
        *,
        after: str | None = None,
        model: str | None = None,
        min_reward: float | None = None,
    ) -> list[ExportedDatum]:
        """The caller's conversations as datums for a loss, oldest first.

        ``importance_sampling``: answers with a reward, which becomes the advantage of each sampled token.
        ``cross_entropy``: all answers, and the correction where there is one. ``after``: only conversations newer than
        this id. ``min_reward``: only answers with at least this reward.
        """
        query = {"loss_fn": loss_fn, "after": after, "model": model, "min_reward": min_reward}
        given = {name: value for name, value in query.items() if value is not None}
        with _explained(), self._http.stream("GET", "/datums", params=given) as answer:
            _check(answer)
            return read_datums(answer.iter_lines())

    def reward(self, conversation_id: str, reward: float | None, *, choice: int | None = None) -> None:
        """Attach a reward to an answer; None removes it. ``choice``: which one, where there are several."""
        self._put(f"/{conversation_id}/reward", {"reward": reward}, choice)

    def correct(
        self,
        conversation_id: str,
        *,
        text: str | None = None,
        tokens: Sequence[int] | None = None,
        choice: int | None = None,
    ) -> None:
        """Attach what the answer should have been, as text or as tokens."""
        given = {"text": text, "tokens": None if tokens is None else list(tokens)}
        body = {name: value for name, value in given.items() if value is not None}
        self._put(f"/{conversation_id}/correction", body, choice)

    def delete(self, conversation_id: str) -> None:
        """Delete a conversation with all that is attached to it."""
        with _explained():
            _check(self._http.delete(f"/{conversation_id}"))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _put(self, path: str, body: dict[str, Any], choice: int | None) -> None:  # Any: plain JSON
        with _explained():
            _check(self._http.put(path, json=body if choice is None else {**body, "choice": choice}))


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise ConversationsRefused(f"the server did not answer: {str(error) or type(error).__name__}") from error


def _check(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    answer.read()
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = answer.text[:300]
    raise ConversationsRefused(f"the server answered {answer.status_code}: {detail}")


def _datum(found: dict[str, Any]) -> types.Datum:  # Any: plain JSON
    tokens = [token for chunk in found["model_input"]["chunks"] for token in chunk["tokens"]]
    inputs = {
        name: types.TensorData(data=each["data"], dtype=each["dtype"], shape=each["shape"])
        for name, each in found["loss_fn_inputs"].items()
    }
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)


def _parse(line: str) -> ExportedDatum:
    """Raises ConversationsRefused."""
    try:
        found = json.loads(line)
        return ExportedDatum(
            conversation_id=found["conversation_id"],
            choice=found["choice"],
            model=found["model"],
            path=found["path"],
            weights_digest=found["weights_digest"],
            temperature=found["temperature"],
            reward=found["reward"],
            is_corrected=found["corrected"],
            datum=_datum(found["datum"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConversationsRefused(f"{line!r:.80} is no line of an export: {error}") from error
