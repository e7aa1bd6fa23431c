"""``chockstone checkpoints trash`` and ``undelete``: deleted checkpoints that a server still has."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, DryRun, Key, ServerUrl, Yes
from chockstone.cli.output.reporting import EXIT_CODES, reporting

commands = typer.Typer(add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES)


@commands.callback(invoke_without_command=True)
def trash(
    context: typer.Context,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List deleted checkpoints of a server that can be undeleted.

    A server has a trash if it was started with one: `chockstone serve --trash 7d`. What was deleted,
    overwritten, expired or swept stays in it that long, unless the disk runs out of room.

    \b
    Examples:
      chockstone checkpoints trash
      chockstone checkpoints undelete tinker://RUN/weights/step-100
      chockstone checkpoints trash empty --dry-run
    """
    if context.invoked_subcommand is not None:
        return
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.trash import list_trash

        list_trash(connect(server, key), now=datetime.now(UTC), as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def empty(
    yes: Yes = False,
    dry_run: DryRun = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove what is in the trash, for good.

    What a live sampler uses stays until the sampler's session ends, and is named.

    \b
    Example:
      chockstone checkpoints trash empty --dry-run
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.trash import empty_trash

        empty_trash(connect(server, key), yes=yes, dry_run=dry_run, as_json=as_json)


def undelete(
    word: Annotated[str, typer.Argument(metavar="TRASH_ID|PATH", help="As `trash` shows it; of a path the newest.")],
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Another name, where its own is taken by now.")
    ] = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Take a checkpoint out of the server's trash.

    A server has one if it was started with `--trash AGE`. The rules of retention spare an undeleted
    checkpoint for as long as the trash keeps things, or the rule that removed it would remove it again;
    pin its name, or publish it, to keep it longer. An expiry that has passed is taken away.

    \b
    Examples:
      chockstone checkpoints undelete tinker://RUN/weights/step-100
      chockstone checkpoints undelete 17 --as step-100-again
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote import trash as served
        from chockstone.cli.remote.client import connect

        served.undelete(connect(server, key), word, name=name, as_json=as_json)
