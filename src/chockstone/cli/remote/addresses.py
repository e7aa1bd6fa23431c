"""Parses ``tinker://`` paths and run ids, and makes the server's routes of them."""

from __future__ import annotations

from typing import Final

import typer

from chockstone.cli.remote.client import segment
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import SCHEME, TinkerPath, check_run_id

KINDS: Final = ("weights", "sampler_weights", "external_weights")


def is_address(word: str | None) -> bool:
    """Whether a word that may be a store's is a server's."""
    return word is not None and word.startswith(SCHEME)


def find_path(word: str) -> TinkerPath:
    try:
        return TinkerPath.parse(word)
    except BadRequest as error:
        raise typer.BadParameter(f"{error} `chockstone checkpoints ls` shows them.") from None


def find_run(word: str) -> str:
    """A run by its id, or by ``tinker://RUN``."""
    try:
        return check_run_id(word.removeprefix(SCHEME).rstrip("/"))
    except BadRequest as error:
        raise typer.BadParameter(f"{error} `chockstone runs ls` shows them.") from None


def route(path: TinkerPath, *more: str) -> str:
    return "/".join((run_route(path.run_id), "checkpoints", path.kind, segment(path.name), *more))


def run_route(run_id: str) -> str:
    return f"training_runs/{segment(run_id)}"
