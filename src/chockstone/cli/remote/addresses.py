"""Finds runs and checkpoints of a server by id, by a unique prefix or by ``tinker://`` path, and makes its routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import typer

from chockstone.cli.output.short_ids import complete_id
from chockstone.cli.remote.client import NotThere, Server, segment
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import SCHEME, TinkerPath, check_run_id

KINDS: Final = ("weights", "sampler_weights", "external_weights")
_WHOLE_RUN_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:train:\d+")


def is_address(word: str | None) -> bool:
    """Whether a word that may be a store's is a server's."""
    return word is not None and word.startswith(SCHEME)


def find_run(server: Server, word: str) -> str:
    """The id of a run by its id, a unique prefix of it, or ``tinker://RUN``. Raises AmbiguousId."""
    try:
        run_id = check_run_id(word.removeprefix(SCHEME).rstrip("/"))
    except BadRequest as error:
        raise typer.BadParameter(f"{error} `chockstone runs ls` lists your runs.") from None
    if _WHOLE_RUN_ID.fullmatch(run_id):
        return run_id
    own = (str(run["training_run_id"]) for run in server.pages("training_runs", "training_runs"))
    return complete_id(run_id, own, noun="run") or run_id


def find_path(server: Server, word: str) -> TinkerPath:
    """The path of a checkpoint, whose run may be shortened. The checkpoint need not exist."""
    path = parse_path(word)
    return replace(path, run_id=find_run(server, path.run_id))


def find_paths(server: Server, words: Sequence[str]) -> list[TinkerPath]:
    """As ``find_path`` of each. A mistake in one of them is found before the server is asked."""
    for word in words:
        parse_path(word)
    return [find_path(server, word) for word in words]


def find_readable(server: Server, word: str) -> TinkerPath:
    """As ``find_path``, and the name may be shortened, too. For commands that only read."""
    path = find_path(server, word)
    if path.is_latest:
        return path
    with suppress(NotThere):
        server.get(route(path))
        return path
    with suppress(NotThere):
        listed = server.get(f"{run_route(path.run_id)}/checkpoints")["checkpoints"]
        found = complete_id(path.checkpoint_id, (str(each["checkpoint_id"]) for each in listed), noun="checkpoint")
        if found is not None:
            return replace(path, name=found.partition("/")[2])
    return path


def parse_path(word: str) -> TinkerPath:
    try:
        return TinkerPath.parse(word)
    except BadRequest as error:
        raise typer.BadParameter(f"{error} `chockstone checkpoints ls` lists your checkpoints.") from None


def route(path: TinkerPath, *more: str) -> str:
    return "/".join((run_route(path.run_id), "checkpoints", path.kind, segment(path.name), *more))


def run_route(run_id: str) -> str:
    return f"training_runs/{segment(run_id)}"
