"""``chockstone alias``: names of checkpoints and base models on a server."""

from __future__ import annotations

from typing import Annotated

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, Key, ServerUrl
from chockstone.cli.output.exit_codes import EXIT_CODES
from chockstone.cli.output.reporting import reporting

commands = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the alias.")]
OfAll = Annotated[bool, typer.Option("--global", help="Alias of all users; changed by admins.")]


@commands.callback()
def alias() -> None:
    """Name checkpoints and base models, switch the names, and undo.

    Clients use the name of an alias as the name of a model. A change applies to the next request. Your own
    aliases come before those of all users. A checkpoint that an alias points at cannot be deleted and cannot
    expire, and retention rules keep it.

    \b
    Examples:
      chockstone alias set prod tinker://RUN/sampler_weights/s100
      chockstone alias undo prod
    """


@commands.command("set", epilog=EXIT_CODES)
def set_(
    name: Name,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="Path of a checkpoint (tinker://…), or name of a base model.")
    ],
    store: Annotated[
        bool | None,
        typer.Option(
            "--store/--no-store",
            help="Store conversations with the target, to train on them; default: as the alias has it.",
            show_default=False,
        ),
    ] = None,
    everyone: OfAll = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Create an alias, or switch it to another target.

    An alias of all users needs a published checkpoint. With --store, `chockstone conversations ls` shows each user
    their own conversations with the target.

    \b
    Examples:
      chockstone alias set prod tinker://RUN/sampler_weights/s100
      chockstone alias set --store prod tinker://RUN/sampler_weights/s100
      chockstone alias set --global prod tinker://RUN/sampler_weights/latest
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.aliases import set_alias

        set_alias(connect(server, key), name, target, store=store, server_wide=everyone, as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def ls(
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List your aliases and those of all users.

    \b
    Example:
      chockstone alias ls
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.aliases import list_aliases

        list_aliases(connect(server, key), as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def history(
    name: Name,
    everyone: OfAll = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the changes of an alias, newest first.

    \b
    Example:
      chockstone alias history prod
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.aliases import show_history

        show_history(connect(server, key), name, server_wide=everyone, as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def undo(
    name: Name,
    everyone: OfAll = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Undo the last change of an alias; again, the one before it.

    \b
    Example:
      chockstone alias undo prod
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.aliases import undo_alias

        undo_alias(connect(server, key), name, server_wide=everyone, as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def rm(
    name: Name,
    everyone: OfAll = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove an alias. Its target stays, and `undo` brings the alias back.

    \b
    Example:
      chockstone alias rm prod
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.aliases import remove_alias

        remove_alias(connect(server, key), name, server_wide=everyone, as_json=as_json)
