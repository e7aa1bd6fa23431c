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
    """Let all users of the server read a checkpoint.

    Other users can load, sample, copy and download it by its path. No retention rule deletes a published
    checkpoint.

    \b
    Example:
      chockstone checkpoints publish tinker://RUN/weights/s100
    """
    _set_public(path, server, key, public=True, as_json=as_json, debug=debug)


def unpublish(
    path: PathWord, server: ServerUrl = SERVER, key: Key = KEY, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Make a published checkpoint private again.

    \b
    Example:
      chockstone checkpoints unpublish tinker://RUN/weights/s100
    """
    _set_public(path, server, key, public=False, as_json=as_json, debug=debug)


def ttl(
    path: PathWord,
    lifetime: Annotated[
        str, typer.Argument(metavar="AGE|none", help="Lifetime from now: 12h, 7d, 2w; none is unlimited.")
    ],
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Set the lifetime of a checkpoint, counted from now.

    \b
    Examples:
      chockstone checkpoints ttl tinker://RUN/weights/s100 7d
      chockstone checkpoints ttl tinker://RUN/weights/s100 none
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_path
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.sharing import set_lifetime

        seconds = None if is_off(lifetime) else parsed(parse_duration, lifetime, "AGE")
        asked = connect(server, key)
        set_lifetime(asked, find_path(asked, path), seconds, as_json=as_json)


def copy(
    path: PathWord,
    project: Annotated[str | None, typer.Option(metavar="PROJECT", help="Project of the copy.")] = None,
    lifetime: Annotated[
        str | None,
        typer.Option("--ttl", metavar="AGE", help="Lifetime of the copy: 12h, 7d, 2w.  [default: unlimited]"),
    ] = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Copy your own or a published checkpoint into a new run.

    The copy shares the bytes on disk, and stays when the original is deleted. Prints the path of the copy.

    \b
    Example:
      chockstone checkpoints copy tinker://RUN/weights/s100 --project baselines
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_path
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.sharing import copy_served

        seconds = None if lifetime is None else parsed(parse_duration, lifetime, "--ttl")
        asked = connect(server, key)
        copy_served(asked, find_path(asked, path), project_id=project, ttl_seconds=seconds, as_json=as_json)


def _set_public(path: str, server: str, key: str, *, public: bool, as_json: bool, debug: bool) -> None:
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_path
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.sharing import set_public

        asked = connect(server, key)
        set_public(asked, find_path(asked, path), public=public, as_json=as_json)
