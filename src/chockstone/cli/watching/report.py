"""The report: one overview, printed once as text or JSON, or kept on the screen."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from chockstone.cli.output.terminal import print_json, print_line
from chockstone.cli.remote.client import Server
from chockstone.cli.watching.overview import OverviewReader
from chockstone.cli.watching.screen import PLAIN_WIDTH, draw
from chockstone.cli.watching.sparkline import ASCII, BLOCKS


def report(server: Server, *, once: bool, as_json: bool, interval_seconds: float) -> None:
    """Keep the overview on the screen; ``once``, as JSON, or without a terminal: print it and return."""
    from rich.console import Console

    reader = OverviewReader(server)
    if as_json:
        print_json(reader.read(now=_now()).document())
        return
    levels = BLOCKS if _has_unicode() else ASCII
    console = Console()
    if once or not sys.stdout.isatty() or console.is_dumb_terminal:
        width = console.width if sys.stdout.isatty() else PLAIN_WIDTH
        for line in draw(reader.read(now=_now()), width=width, levels=levels):
            print_line(line.plain.rstrip())
        return
    from chockstone.cli.watching.live_screen import watch

    watch(reader, console, interval_seconds=interval_seconds, levels=levels, now=_now)


def _has_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


def _now() -> datetime:
    return datetime.now(UTC)
