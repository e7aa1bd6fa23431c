"""The live screen: redraws the overview until q is pressed, while a thread asks the server.

The terminal is restored however the command ends: by q, Ctrl-C, SIGTERM or an error.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import FrameType
from typing import Final

from rich.console import Console, Group
from rich.live import Live

from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.reporting import CommandFailed
from chockstone.cli.remote.client import ServerUnreachable
from chockstone.cli.watching.overview import Outage, OverviewReader, ServerOverview, outage
from chockstone.cli.watching.screen import draw

_REDRAW_SECONDS: Final = 1.0
_QUIT: Final = frozenset(b"qQ")
_KEYS: Final = 64  # read at once


@dataclass(slots=True)
class _Asked:
    """What the asking thread found last. It alone writes the fields."""

    overview: ServerOverview
    outage: Outage | None = None
    failure: CommandFailed | None = None  # that ends the command


def watch(
    reader: OverviewReader, console: Console, *, interval_seconds: float, levels: str, now: Callable[[], datetime]
) -> None:
    """Returns when q is pressed. Raises CommandFailed if the first question fails, or if the server refuses the key.

    A server that goes away later is asked again until it is back.
    """
    asked = _Asked(reader.read(now=now()))
    with ExitStack() as stack:
        wake, woken = _pipe(stack)
        stack.enter_context(_handling(signal.SIGWINCH, lambda: _poke(wake)))
        stack.enter_context(_handling(signal.SIGTERM, _terminate))
        keys = stack.enter_context(_reading_keys())
        stopped = threading.Event()
        stack.callback(stopped.set)
        threading.Thread(
            target=_keep_asking, args=(reader, asked, stopped, interval_seconds, wake, now), daemon=True
        ).start()
        live = stack.enter_context(
            Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        )
        while asked.failure is None:
            lines = draw(
                asked.overview,
                width=console.width,
                height=console.height,
                outage=asked.outage,
                now=now(),
                levels=levels,
            )
            live.update(Group(*lines), refresh=True)
            ready, _, _ = select.select([woken, *keys], [], [], _REDRAW_SECONDS)
            if woken in ready:
                os.read(woken, _KEYS)
            if any(_QUIT & set(os.read(key, _KEYS)) for key in keys if key in ready):
                return
    raise asked.failure


def _keep_asking(
    reader: OverviewReader,
    asked: _Asked,
    stopped: threading.Event,
    interval_seconds: float,
    wake: int,
    now: Callable[[], datetime],
) -> None:
    while not stopped.wait(interval_seconds):
        try:
            asked.overview = reader.read(now=now())
            asked.outage = None
        except ServerUnreachable as error:
            asked.outage = outage(error, now=now(), before=asked.outage)
        except CommandFailed as error:
            asked.failure = error
        if stopped.is_set():
            return
        _poke(wake)
        if asked.failure is not None:
            return


def _pipe(stack: ExitStack) -> tuple[int, int]:
    """The end to write to, and the end to read from."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    stack.callback(os.close, woken)
    stack.callback(os.close, wake)
    return wake, woken


def _poke(wake: int) -> None:
    try:
        os.write(wake, b".")
    except OSError:
        return  # it is full: the screen is redrawn anyway, or closed


@contextmanager
def _handling(number: signal.Signals, act: Callable[[], None]) -> Iterator[None]:
    def handle(_number: int, _frame: FrameType | None) -> None:
        act()

    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)


def _terminate() -> None:
    raise SystemExit(ExitCode.TERMINATED)


@contextmanager
def _reading_keys() -> Iterator[list[int]]:
    """The descriptor of the keyboard, which gives each key at once and does not echo it; none without a keyboard."""
    if not sys.stdin.isatty():
        yield []
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)  # Ctrl-C stays a signal
        yield [descriptor]
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
