"""The terminal: tables and JSON to standard output, progress and complaints to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from chockstone.cli.words import plain, printable

if TYPE_CHECKING:
    from rich.console import Console

_ALARM: Final = "red"


def print_json(document: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(plain(document), indent=2, allow_nan=False) + "\n")


def print_line(text: str = "", *, style: str = "") -> None:
    """One line, never wrapped or cut: a terminal folds it, a pipe gets it whole."""
    if not sys.stdout.isatty():
        sys.stdout.write(f"{text}\n")
        return
    from rich.text import Text

    _console().print(Text(text, style=style), soft_wrap=True)


@cache
def _console() -> Console:
    from rich.console import Console

    return Console()


def print_alarm(text: str) -> None:
    print_line(text, style=_ALARM)


def complain(text: str) -> None:
    sys.stdout.flush()  # so that it stands after what it is about
    for line in text.splitlines():
        sys.stderr.write(f"{printable(line)}\n")


def print_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    alarming: Collection[int] = (),
) -> None:
    """Columns as wide as their widest cell. ``right``: headers of columns flush right."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    print_line(_row(headers, headers, widths, right), style="bold")
    for index, row in enumerate(rows):
        print_line(_row(headers, row, widths, right), style=_ALARM if index in alarming else "")


def _row(headers: Sequence[str], cells: Sequence[str], widths: Sequence[int], right: Collection[str]) -> str:
    shown = (
        cell.rjust(width) if header in right else cell.ljust(width)
        for header, cell, width in zip(headers, cells, widths, strict=True)
    )
    return "  ".join(shown).rstrip()


@contextmanager
def bytes_bar(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A progress bar while the block runs, gone after it. Yields what to tell of bytes done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        task = progress.add_task(printable(label), total=total_bytes)
        yield lambda count: progress.advance(task, count)


@contextmanager
def spinner(label: str) -> Iterator[None]:
    """For work of unknown length."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(label)):
        yield
