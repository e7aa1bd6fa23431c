"""Commands that share checkpoints of a server and set how long they live."""

from __future__ import annotations

from typing import Annotated

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, Key, PathWord, ServerUrl, parsed
from chockstone.cli.output.formatting import is_off, parse_duration
from chockstone.cli.output.reporting import reporting


def publish(
    path: PathWord, server: ServerUrl = SERVER, key: Key = KEY, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Let every user of the server read a checkpoint.

    They can load, sample, copy and download it by its path. A published checkpoint is pinned: no rule
    removes it.

    \b
    Example:
      chockstone checkpoints publish tinker://RUN/weights/step-100
    """
    _set_public(path, server, key, public=True, as_json=as_json, debug=debug)


def unpublish(
    path: PathWord, server: ServerUrl = SERVER, key: Key = KEY, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Make a published checkpoint private again.

    \b
    Example:
      chockstone checkpoints unpublish tinker://RUN/weights/step-100
    """
    _set_public(path, server, key, public=False, as_json=as_json, debug=debug)


def ttl(
    path: PathWord,
    lifetime: Annotated[str, typer.Argument(metavar="AGE|none", help="Counted from now: 12h, 7d, 2w; none: for ever.")],
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say when a checkpoint expires, counted from now.

    \b
    Examples:
      chockstone checkpoints ttl tinker://RUN/weights/step-100 7d
      chockstone checkpoints ttl tinker://RUN/weights/step-100 none
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_path
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.sharing import set_lifetime

        seconds = None if is_off(lifetime) else parsed(parse_duration, lifetime, "AGE")
        set_lifetime(connect(server, key), find_path(path), seconds, as_json=as_json)


def copy(
    path: PathWord,
    project: Annotated[str | None, typer.Option(metavar="PROJECT", help="The project that the copy is for.")] = None,
    lifetime: Annotated[
        str | None, typer.Option("--ttl", metavar="AGE", help="When the copy expires: 12h, 7d, 2w.")
    ] = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Copy a checkpoint of yours, or a published one, into a run of its own.

    The copy shares the bytes and lives on by itself when the other is removed. Prints its path.

    \b
    Example:
      chockstone checkpoints copy tinker://RUN/weights/step-100 --project baselines
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_path
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.sharing import copy_served

        seconds = None if lifetime is None else parsed(parse_duration, lifetime, "--ttl")
        copy_served(connect(server, key), find_path(path), project_id=project, ttl_seconds=seconds, as_json=as_json)


def _set_public(path: str, server: str, key: str, *, public: bool, as_json: bool, debug: bool) -> None:
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_path
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.sharing import set_public

        set_public(connect(server, key), find_path(path), public=public, as_json=as_json)
