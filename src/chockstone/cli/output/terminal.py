"""Prints tables and JSON to standard output, progress and errors to standard error."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from chockstone.cli.output.formatting import plain, printable

if TYPE_CHECKING:
    from rich.console import Console

_ALARM: Final = "red"
_GAP: Final = "  "
_WIDE: Final = 80  # characters that a cell may always have


def print_json(document: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(plain(document), indent=2, allow_nan=False) + "\n")


def print_line(text: str = "", *, style: str = "", start: tuple[int, str] = (0, "")) -> None:
    """One line, never wrapped or cut: a terminal folds it, a pipe gets it whole.

    ``start``: so many characters look different.
    """
    if not sys.stdout.isatty():
        sys.stdout.write(f"{text}\n")
        return
    from rich.text import Text

    length, start_style = start
    line = Text(text, style=style)
    line.stylize(start_style, 0, length)
    _console().print(line, soft_wrap=True)


@cache
def _console() -> Console:
    from rich.console import Console

    return Console()


def print_alarm(text: str) -> None:
    print_line(text, style=_ALARM)


def print_stderr(text: str) -> None:
    sys.stdout.flush()  # so that it stands after what it is about
    for line in text.splitlines():
        sys.stderr.write(f"{printable(line)}\n")


def print_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    alarming: Collection[int] = (),
    first_styles: Sequence[str] = (),
) -> None:
    """Columns as wide as their widest cell. ``right``: headers of columns flush right.

    ``first_styles``: how the first cell of each row looks.

    On a terminal a cell that would push the others far out stands at the end of its line, whole, and
    the row continues below it. A pipe gets a line for each row.
    """
    longest = max(_WIDE, shutil.get_terminal_size().columns - _WIDE // 2) if sys.stdout.isatty() else None
    first, *lines = lay_out(headers, rows, right=right, longest=longest)
    print_line(first, style="bold")
    for index, line in enumerate(lines):
        start = (len(rows[index][0]), first_styles[index]) if first_styles else (0, "")
        print_line(line, style=_ALARM if index in alarming else "", start=start)


def lay_out(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = (), longest: int | None = None
) -> list[str]:
    """The headers and each row as text. After a cell longer than ``longest`` a new line starts; None: never."""
    limit = math.inf if longest is None else longest
    columns = list(zip(headers, *rows, strict=True))
    widths = [max(len(cell) for cell in column if len(cell) <= limit) for column in columns]
    laid: list[str] = []
    for cells in (headers, *rows):
        text, position = "", 0  # where the next column starts, and what stands before it
        for header, cell, width in zip(headers, cells, widths, strict=True):
            text += cell.rjust(width) if header in right else cell.ljust(width)
            position += width + len(_GAP)
            text += _GAP if len(cell) <= limit else f"\n{' ' * position}"
        laid.append("\n".join(line.rstrip() for line in text.rstrip().split("\n")))
    return laid


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
