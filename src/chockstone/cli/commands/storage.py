"""``chockstone storage``: shows how much of a server's disk each user and run uses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, Key, ServerUrl
from chockstone.cli.output.reporting import EXIT_CODES, reporting

commands = typer.Typer(add_completion=False, rich_markup_mode=None)


@commands.command(epilog=EXIT_CODES)
def storage(
    runs: Annotated[int, typer.Option("--runs", metavar="N", min=0, help="How many runs to show, largest first.")] = 10,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show who uses how much of a server's disk.

    Your own checkpoints; for admins, and where there are no keys, everyone's. Bars are relative to the
    quota where there is one, else to the largest.

    \b
    Examples:
      chockstone storage
      chockstone storage --json
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.storage import show_storage

        show_storage(connect(server, key), runs=runs, now=datetime.now(UTC), as_json=as_json)
