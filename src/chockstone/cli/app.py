"""The program ``chockstone``: its commands and its own options."""

from __future__ import annotations

from typing import Annotated, ClassVar

import typer

import chockstone
from chockstone.cli.commands.lazy_group import LazyCommand, LazyGroup
from chockstone.cli.output.exit_codes import EXIT_CODES


class Program(LazyGroup):
    PANELS: ClassVar = {
        "Serve and train": {
            "serve": LazyCommand("serve", "Serve models for training and sampling to the Tinker SDK."),
            "train": LazyCommand("train", "Train a model by reinforcement learning."),
            "model": LazyCommand("model", "Download or make models, and plan their memory."),
        },
        "Runs and checkpoints": {
            "watch": LazyCommand(
                "watch", "Show live what a server does: runs, losses, queue, worker, disk and problems.", "watch"
            ),
            "runs": LazyCommand("runs", "List, show and delete the training runs of a server."),
            "checkpoints": LazyCommand(
                "checkpoints.group", "List, verify, import, export, share and delete checkpoints."
            ),
            "import": LazyCommand(
                "checkpoints.weights_import",
                "Import an adapter or full weights as a checkpoint of a server.",
                "import_",
            ),
            "alias": LazyCommand("serving.alias", "Name checkpoints and base models, switch the names, and undo."),
            "conversations": LazyCommand(
                "conversations", "List, export, reward, correct and delete stored conversations."
            ),
            "resume": LazyCommand("resume", "Explain which checkpoint a training resumes from."),
        },
        "Disk space": {
            "storage": LazyCommand("storage", "Show the disk usage of a server by user and run."),
            "policy": LazyCommand("policy", "Show and set retention rules and quotas of a server."),
            "trash": LazyCommand("trash", "List, undelete and purge deleted checkpoints of a server."),
        },
        "Administration": {
            "samplers": LazyCommand("serving.samplers", "List sampling sessions, and check how exact vLLM is."),
            "replicas": LazyCommand("serving.replicas", "List, add and drain the worker replicas of a server."),
            "keys": LazyCommand("keys", "Create, list and revoke API keys."),
            "audit": LazyCommand("audit", "List the audit log of a server.", "audit"),
            "doctor": LazyCommand("doctor", "Compare store and catalog, explain findings, and repair them."),
        },
    }


# No rich help: it reflows the examples. No rich tracebacks: they print local variables.
app = typer.Typer(
    cls=Program, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, epilog=EXIT_CODES
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
    """Train with the Tinker API on your own machine, and checkpoint any loop.

    \b
    Start a server and train on it, offline:
      chockstone model make ./tiny
      chockstone serve --model tiny=./tiny
      chockstone train --env arithmetic --server http://127.0.0.1:8000
    Look at the results:
      chockstone watch
      chockstone runs ls
      chockstone checkpoints ls
    Complete commands with the Tab key:
      chockstone --install-completion
    """
    import logging

    logging.getLogger("chockstone").addHandler(logging.NullHandler())  # commands report what the library logs
