"""The program ``chockstone``: its commands and its own options."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

import chockstone
from chockstone.cli.commands import doctor, serve, storage, train
from chockstone.cli.commands.checkpoints.group import commands as checkpoints
from chockstone.cli.commands.keys import commands as keys
from chockstone.cli.commands.model import commands as model
from chockstone.cli.commands.resume import commands as resume
from chockstone.cli.commands.runs import commands as runs
from chockstone.cli.settings.flags import GroupedCommand

# No rich help: it reflows the examples. No rich tracebacks: they print local variables.
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command("serve", epilog=serve.EPILOG, cls=GroupedCommand)(serve.serve)
app.command("train", epilog=train.EPILOG, cls=GroupedCommand)(train.train)
app.add_typer(model, name="model")
app.add_typer(runs, name="runs")
app.add_typer(checkpoints, name="checkpoints")
app.add_typer(resume, name="resume")
app.command(epilog=storage.EPILOG)(storage.storage)
app.command(epilog=doctor.EPILOG)(doctor.doctor)
app.add_typer(keys, name="keys")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"chockstone {chockstone.__version__}")
        raise typer.Exit


@app.callback()
def chockstone_program(
    version: Annotated[  # noqa: ARG001  # its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Chockstone: a training server that holds your fall, and the checkpoint library under it."""
    logging.getLogger("chockstone").addHandler(logging.NullHandler())  # commands report what the library logs
