"""``chockstone replicas``: worker replicas of a server."""

from __future__ import annotations

from typing import Annotated

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, Key, ServerUrl
from chockstone.cli.output.exit_codes import EXIT_CODES
from chockstone.cli.output.reporting import reporting

commands = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES)

Number = Annotated[int, typer.Argument(metavar="NUMBER", min=0, help="Number of the replica, as `ls` prints it.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return at once.")]


@commands.callback()
def replicas() -> None:
    """List, add and drain the worker replicas of a server.

    The server must have been started with --replicas N or --replicas auto. Replicas are changed by admins.
    Scripts notice nothing: a run moves between two of its operations, with the same bits.

    \b
    Examples:
      chockstone replicas ls
      chockstone replicas add
      chockstone replicas drain 1
    """


@commands.command(epilog=EXIT_CODES)
def ls(
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the replicas with state, runs, memory and restarts.

    \b
    Example:
      chockstone replicas ls
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.replicas import list_replicas

        list_replicas(connect(server, key), as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def add(
    no_wait: NoWait = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Start one more worker, and wait until it has loaded the models.

    The worker has the settings of the others. New runs and samples use it at once; other runs move to it if
    the load is uneven.

    \b
    Example:
      chockstone replicas add
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.replicas import add_replica

        add_replica(connect(server, key), is_waited_for=not no_wait, as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def drain(
    number: Number,
    no_wait: NoWait = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Move the runs of a replica to others, then end its worker.

    Each run moves when its operation in progress has ended. Ctrl-C stops the waiting, not the draining;
    `undrain` stops the draining.

    \b
    Example:
      chockstone replicas drain 1
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.replicas import drain_replica

        drain_replica(connect(server, key), number, is_waited_for=not no_wait, as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def undrain(
    number: Number,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let a replica that is being drained stay. Runs that have moved stay where they are.

    \b
    Example:
      chockstone replicas undrain 1
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.replicas import undrain_replica

        undrain_replica(connect(server, key), number, as_json=as_json)
