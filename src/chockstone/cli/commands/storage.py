"""``chockstone storage``: shows how much of a server's disk each user and run uses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, Key, ServerUrl
from chockstone.cli.output.exit_codes import EXIT_CODES
from chockstone.cli.output.reporting import reporting

commands = typer.Typer(add_completion=False, rich_markup_mode=None)


@commands.command(epilog=EXIT_CODES)
def storage(
    runs: Annotated[
        int, typer.Option("--runs", metavar="N", min=0, help="Number of runs to show, largest first.")
    ] = 10,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show the disk usage of a server by user and run.

    Counts your own checkpoints. Admins see all users, and so does everyone on a server without API keys. A bar
    shows the share of the quota; without a quota, the size relative to the largest user or run.

    \b
    Examples:
      chockstone storage
      chockstone storage --json
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.storage import show_storage

        show_storage(connect(server, key), runs=runs, now=datetime.now(UTC), as_json=as_json)
