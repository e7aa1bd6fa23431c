"""``chockstone trash``: deleted checkpoints that a server still has."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, DryRun, Key, ServerUrl, Yes
from chockstone.cli.output.exit_codes import EXIT_CODES
from chockstone.cli.output.reporting import reporting

commands = typer.Typer(add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES)


@commands.callback(invoke_without_command=True)
def trash(
    context: typer.Context,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List, undelete and purge deleted checkpoints of a server.

    Without a command, lists the trash. A server has a trash if it was started with `serve --trash TIME`.
    Checkpoints that were deleted, overwritten, expired or swept stay in the trash for that time, or until the
    disk is full.

    \b
    Examples:
      chockstone trash
      chockstone trash undelete tinker://RUN/weights/s100
      chockstone trash empty --dry-run
    """
    if context.invoked_subcommand is not None:
        return
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.trash import list_trash

        list_trash(connect(server, key), now=datetime.now(UTC), as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def undelete(
    word: Annotated[
        str, typer.Argument(metavar="TRASH_ID|PATH", help="Id or path as `trash` prints it; a path means its newest.")
    ],
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="New name, if the name is taken.  [default: the old name]"),
    ] = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Take a checkpoint out of the trash.

    Retention rules spare an undeleted checkpoint for as long as the trash keeps checkpoints. Pin its name or
    publish it to keep it longer. An expiry that has passed is removed.

    \b
    Examples:
      chockstone trash undelete tinker://RUN/weights/s100
      chockstone trash undelete 17 --as s100-again
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote import trash as served
        from chockstone.cli.remote.client import connect

        served.undelete(connect(server, key), word, name=name, as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def empty(
    yes: Yes = False,
    dry_run: DryRun = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Delete all checkpoints in the trash for good.

    A checkpoint that a live sampler uses stays until the session of the sampler ends; the command lists it.

    \b
    Example:
      chockstone trash empty --dry-run
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.trash import empty_trash

        empty_trash(connect(server, key), yes=yes, dry_run=dry_run, as_json=as_json)
