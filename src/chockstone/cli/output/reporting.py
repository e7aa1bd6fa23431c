"""Ends a command with a message and an exit code.

An expected error is a sentence on standard error and an exit code; any other error is a bug and keeps its traceback.
Used by every command:

    with reporting(as_json=as_json, debug=debug):
        ...
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.terminal import print_json, print_stderr
from chockstone.extras import ExtraMissing


class CommandFailed(Exception):
    """A command cannot do what it was asked; the message says why, and ``exit_code`` how it ends."""

    exit_code: ExitCode = ExitCode.USAGE


@contextmanager
def reporting(*, as_json: bool, debug: bool) -> Iterator[None]:
    """Run the block, then flush what it printed. Expected errors become messages and exit codes."""
    from chockstone.checkpoints.errors import CheckpointError

    try:
        yield
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        _silence_stdout()
        raise typer.Exit(ExitCode.BROKEN_PIPE) from None
    except (CheckpointError, CommandFailed, ExtraMissing) as error:
        if debug:
            traceback.print_exc()
        print_stderr(f"chockstone: {error}")
        if as_json:
            print_json({"error": {"kind": type(error).__name__, "message": str(error)}})
        raise typer.Exit(_exit_code(error)) from None
    except OSError as error:  # the library explains its own, so this is the output's
        if debug:
            traceback.print_exc()
        _silence_stdout()
        print_stderr(f"chockstone: cannot write the output: {error.strerror or error}")
        raise typer.Exit(ExitCode.UNREACHABLE) from None


def finish(exit_code: int) -> None:
    if exit_code:
        raise typer.Exit(exit_code)


def _exit_code(error: Exception) -> int:
    from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive, ImportRefused, InvalidName, StoreError

    if isinstance(error, CommandFailed):
        return error.exit_code
    if isinstance(error, DamagedArchive | CheckpointMissing | ImportRefused):
        return ExitCode.FAILED
    if isinstance(error, StoreError) and not isinstance(error, InvalidName):
        return ExitCode.UNREACHABLE
    return ExitCode.USAGE


def _silence_stdout() -> None:
    """The reader of the output is gone; the interpreter must not write to it again at exit."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return  # not a real file
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
