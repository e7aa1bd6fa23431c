"""``chockstone runs``: lists and shows the training runs of a server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, Key, ServerUrl
from chockstone.cli.output.reporting import EXIT_CODES, reporting

commands = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES)


@commands.callback()
def runs() -> None:
    """Look at the training runs of a server.

    \b
    Examples:
      chockstone runs ls
      chockstone runs show RUN
      chockstone runs recoveries RUN
    """


@commands.command(epilog=EXIT_CODES)
def ls(server: ServerUrl = SERVER, key: Key = KEY, as_json: AsJson = False, debug: Debug = False) -> None:
    """List your runs, with the newest checkpoint of each.

    \b
    Example:
      chockstone runs ls
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.runs import list_runs

        list_runs(connect(server, key), now=datetime.now(UTC), as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="As `ls` shows it.")],
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show one run: its model, its metadata and its checkpoints.

    \b
    Example:
      chockstone runs show RUN
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_run
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.runs import show_run

        show_run(connect(server, key), find_run(run), now=datetime.now(UTC), as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def recoveries(
    run: Annotated[str, typer.Argument(metavar="RUN", help="As `ls` shows it.")],
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List when a run was brought back after a crash, and whether it came out bit for bit the same.

    \b
    Example:
      chockstone runs recoveries RUN
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_run
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.runs import list_recoveries

        list_recoveries(connect(server, key), find_run(run), now=datetime.now(UTC), as_json=as_json)
