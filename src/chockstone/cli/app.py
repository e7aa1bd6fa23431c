"""The program ``chockstone``: its commands and its own options."""

from __future__ import annotations

from typing import Annotated, ClassVar

import typer

import chockstone
from chockstone.cli.commands.lazy_group import LazyCommand, LazyGroup


class Program(LazyGroup):
    COMMANDS: ClassVar = {
        "serve": LazyCommand("serve", "Serve models for training and sampling to the Tinker SDK."),
        "train": LazyCommand(
            "train", "Train a model by reinforcement learning, sampling while it trains and while it saves."
        ),
        "model": LazyCommand("model", "Download models, or make small ones for trying things offline."),
        "runs": LazyCommand("runs", "Look at the training runs of a server."),
        "checkpoints": LazyCommand(
            "checkpoints.group", "Look at, check, take out, share and remove saved checkpoints."
        ),
        "resume": LazyCommand("resume", "Explain what a training run resumes from when it starts again."),
        "storage": LazyCommand("storage", "Show who uses how much of a server's disk."),
        "doctor": LazyCommand("doctor", "Compare store and catalog, explain what is wrong, and repair it."),
        "keys": LazyCommand("keys", "Make, list and revoke the keys of users."),
    }


# No rich help: it reflows the examples. No rich tracebacks: they print local variables.
app = typer.Typer(
    cls=Program, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


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
    import logging

    logging.getLogger("chockstone").addHandler(logging.NullHandler())  # commands report what the library logs
