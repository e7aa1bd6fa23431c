"""The command line: arguments in, tables or JSON out.

A command parses its arguments, calls a room below, and prints; it decides nothing that the library does not offer to
everyone. It must not know how archives and stores work inside. Importing this room loads neither torch nor numpy: a
command imports what it needs when it runs.
"""

from __future__ import annotations

import io
import sys

from chockstone.cli.output.exit_codes import ExitCode


def main() -> None:
    """The program ``chockstone``. Ends the process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character still gets the rest
    try:
        from chockstone.cli.app import app

        app(prog_name="chockstone")
    except ModuleNotFoundError as error:
        from chockstone.extras import explain

        if (missing := explain(error, f"`chockstone {' '.join(sys.argv[1:2])}`")) is None:
            raise
        sys.stderr.write(f"chockstone: {missing}\n")
        sys.exit(ExitCode.USAGE)
    except KeyboardInterrupt:  # between commands; within one it is ``reporting`` that answers
        sys.exit(ExitCode.INTERRUPTED)
