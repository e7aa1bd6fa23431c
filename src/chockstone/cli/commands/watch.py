"""``chockstone watch``: shows on the terminal what a server does."""

from __future__ import annotations

from typing import Annotated

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, Key, ServerUrl
from chockstone.cli.output.reporting import reporting


def watch(
    once: Annotated[bool, typer.Option("--once", help="Print the overview once and exit.")] = False,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.5, max=3600.0, help="Interval between two updates, in seconds.")
    ] = 2.0,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show live what a server does: runs, losses, queue, worker, disk and problems.

    Press q to quit. Admins see the runs of all users, others their own. If the server goes away, the screen keeps the
    last overview and reconnects. Without a terminal, and with --once or --json, the command prints one report and
    exits. TOKENS/S is the mean of the last minute. LOSS is the mean over the weighted tokens of the last pass.

    \b
    Examples:
      chockstone watch
      chockstone watch --once
      chockstone watch --json
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.watching.report import report

        report(connect(server, key), once=once, as_json=as_json, interval_seconds=interval)
