"""Conversations of a server: lists, shows, exports, rewards, corrects and deletes them."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from chockstone.cli.output.confirmation import is_confirmed
from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.formatting import format_count, format_duration, format_size, printable, shorten
from chockstone.cli.output.reporting import CommandFailed
from chockstone.cli.output.terminal import print_json, print_line, print_stderr, print_table
from chockstone.cli.remote.client import LONG_SECONDS, Json, NotThere, Server, segment

_SHOWN: Final = 2000  # characters of one message
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class ListFilter:
    model: str | None = None
    rewarded: bool | None = None
    before: str | None = None

    def query(self, limit: int) -> dict[str, str | int]:
        found: dict[str, str | int] = {"limit": limit}
        if self.model is not None:
            found["model"] = self.model
        if self.rewarded is not None:
            found["rewarded"] = str(self.rewarded).lower()
        if self.before is not None:
            found["before"] = self.before
        return found


def parse_reward(text: str) -> float | None:
    """Raises ValueError."""
    if text == "none":
        return None
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a finite number")
    return number


def parse_tokens(text: str) -> list[int]:
    """Raises ValueError."""
    return [int(each) for each in text.split(",")]


def list_conversations(server: Server, chosen: ListFilter, *, limit: int, now: datetime, as_json: bool) -> None:
    answer = server.get("conversations", chosen.query(limit))
    if as_json:
        print_json({"server": server.url, **answer})
        return
    if not answer["conversations"]:
        print_line("no conversations; requests with store, and aliases that were set with --store, make them")
        return
    rows = [
        (
            each["conversation_id"],
            shorten(printable(each["model"]), 40),
            format_duration((now - datetime.fromisoformat(each["kept_at"])).total_seconds()),
            str(each["prompt_tokens"]),
            str(each["tokens"]),
            _feedback(each),
        )
        for each in answer["conversations"]
    ]
    print_table(("ID", "MODEL", "AGE", "PROMPT", "TOKENS", "REWARD"), rows, right=("PROMPT", "TOKENS"))
    use = f"{format_size(answer['size_bytes'])} of {format_size(answer['quota_bytes'])}"
    print_line(f"{len(rows):,} of {format_count(answer['count'], 'conversation')}, {use}")
    if (before := answer.get("next_before")) is not None:
        print_line(f"older ones: chockstone conversations ls --before {before}")


def show_conversation(server: Server, conversation_id: str, *, as_json: bool) -> None:
    answer = server.get(f"conversations/{segment(conversation_id)}")
    if as_json:
        print_json({"server": server.url, **answer})
        return
    print_line(f"{answer['conversation_id']}  {printable(answer['model'])}  {answer['kept_at']}")
    print_line(f"weights   {printable(answer.get('tinker_path') or answer['base_model'])}")
    print_line(f"digest    {answer.get('weights_digest') or 'of the base model'}")
    for message in answer["messages"]:
        print_line(f"[{printable(str(message.get('role', 'prompt')))}] {_text(message)}")
    for number, choice in enumerate(answer["answers"]):
        name = "answer" if len(answer["answers"]) == 1 else f"answer {number}"
        facts = f"{format_count(len(choice['tokens']), 'token')}, {printable(choice['finish_reason'])}"
        print_line(f"[{name}, {facts}] {_text(choice['message'])}")
        if choice.get("reward") is not None:
            print_line(f"  reward {choice['reward']:g}")
        if (made := choice.get("correction")) is not None:
            told = made.get("text") or format_count(len(made["tokens"]), "token")
            print_line(f"  corrected to: {shorten(printable(told), _SHOWN)}")


def export_datums(
    server: Server,
    target: Path | None,
    query: Mapping[str, Any],  # Any: values of a query
    *,
    as_json: bool,
) -> None:
    """Write the lines to a new file, or to standard output. Raises CommandFailed if the file is there."""
    path = f"conversations/datums?{urlencode({name: value for name, value in query.items() if value is not None})}"
    with server.open(path, seconds=LONG_SECONDS) as lines:
        if target is None:
            shutil.copyfileobj(lines, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        try:
            with target.open("xb") as file:
                shutil.copyfileobj(lines, file)
        except FileExistsError:
            raise CommandFailed(f"{str(target)!r} is there already; name a new file") from None
    with target.open("rb") as file:
        count = sum(1 for _ in file)
    if as_json:
        print_json({"server": server.url, "file": str(target), "datums": count})
    else:
        print_line(f"{format_count(count, 'datum')} in {printable(str(target))}")


def reward_answer(
    server: Server, conversation_id: str, reward: float | None, *, choice: int | None, as_json: bool
) -> None:
    body = {"reward": reward, **_choice(choice)}
    answer = server.put(f"conversations/{segment(conversation_id)}/reward", body)
    _print_change(answer, as_json=as_json)


def correct_answer(
    server: Server,
    conversation_id: str,
    *,
    text: str | None,
    tokens: Sequence[int] | None,
    choice: int | None,
    as_json: bool,
) -> None:
    """Without text and tokens, remove the correction."""
    path = f"conversations/{segment(conversation_id)}/correction"
    if text is None and tokens is None:
        answer = server.delete(path if choice is None else f"{path}?choice={choice}")
    else:
        given = {"tokens": list(tokens)} if tokens is not None else {"text": text}
        answer = server.put(path, {**given, **_choice(choice)})
    _print_change(answer, as_json=as_json)


def find_ids(server: Server, *, model: str | None) -> list[str]:
    """Of all conversations of the caller, or of those with a model."""
    found: list[str] = []
    before: str | None = None
    while True:
        page = server.get("conversations", ListFilter(model=model, before=before).query(_PAGE))
        found += [each["conversation_id"] for each in page["conversations"]]
        if (before := page.get("next_before")) is None:
            return found


def remove_conversations(server: Server, conversation_ids: Sequence[str], *, yes: bool, as_json: bool) -> int:
    """Delete each that is there, and return the exit code."""
    removed: list[str] = []
    missing: list[str] = []
    question = f"Delete {format_count(len(conversation_ids), 'conversation')} for good?"
    if conversation_ids and not yes and not is_confirmed(map(printable, conversation_ids), question):
        print_stderr("nothing was removed")
        conversation_ids = []
    for conversation_id in conversation_ids:
        try:
            server.delete(f"conversations/{segment(conversation_id)}")
        except NotThere as error:
            print_stderr(f"chockstone: {error}")
            missing.append(conversation_id)
        else:
            removed.append(conversation_id)
    if as_json:
        print_json({"server": server.url, "removed": removed, "missing": missing})
    else:
        print_line(f"removed {format_count(len(removed), 'conversation')}")
    return ExitCode.FAILED if missing else ExitCode.OK


def _choice(choice: int | None) -> dict[str, int]:
    return {} if choice is None else {"choice": choice}


def _print_change(answer: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        print_line(f"{answer['conversation_id']}: {_feedback(answer) or 'no reward and no correction'}")


def _feedback(entry: Json) -> str:
    """``0.5``, ``0.5 corrected``, or of several choices ``0: 0.5, 2: 1``."""
    several = entry["choices"] > 1
    parts = []
    for given in entry["feedback"]:
        words = [f"{given['reward']:g}"] if given.get("reward") is not None else []
        words += ["corrected"] if given["is_corrected"] else []
        parts.append((f"{given['choice']}: " if several else "") + " ".join(words))
    return ", ".join(parts)


def _text(message: Mapping[str, Any]) -> str:  # Any: JSON
    content = message.get("content", message.get("text", message.get("prompt")))
    told = content if isinstance(content, str) else str(message)
    return shorten(printable(told), _SHOWN)
