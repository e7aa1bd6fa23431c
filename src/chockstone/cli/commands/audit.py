"""``chockstone audit``: lists who did what to which checkpoint of a server."""

from __future__ import annotations

from datetime import date
from typing import Annotated

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, Key, ServerUrl, parsed
from chockstone.cli.output.reporting import reporting


def audit(
    day: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="Limit the list to one day, in UTC.  [default: all days]")
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Limit the list to one run: its id, or a unique prefix.")
    ] = None,
    last: Annotated[int, typer.Option("--last", metavar="N", min=0, help="Number of entries; 0 lists all.")] = 50,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the audit log of a server.

    Events are saves, loads, deletions, publications and refused keys. Prints one line per event, oldest first:
    time, event, user, path and details. Admins see the events of all users,
    and so does everyone on a server without API keys.

    \b
    Examples:
      chockstone audit
      chockstone audit --day 2026-01-31 --last 0
      chockstone audit --run RUN --json
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.addresses import find_run
        from chockstone.cli.remote.audit import list_audit
        from chockstone.cli.remote.client import connect

        on = None if day is None else parsed(date.fromisoformat, day, "--day")
        asked = connect(server, key)
        run_id = None if run is None else find_run(asked, run)
        list_audit(asked, day=on, run_id=run_id, last=last, as_json=as_json)
