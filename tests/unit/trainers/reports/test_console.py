"""The console: on a pseudo-terminal, into a pipe, and into one that nobody reads any more."""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console

from chockstone.trainers.reports.console import ConsoleReport
from chockstone.trainers.reports.reports import Reports, StepRecord

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
ERASE = "\x1b[2K"


def record(step: int) -> StepRecord:
    return StepRecord(step, {"reward/mean": 0.8125, "staleness/mean": 1.0, "tokens/per_second": 12345.6, "other": 1.0})


class Terminal:
    """A pseudo-terminal, and all that was written to it."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self._master, self.slave = os.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._written = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._master, 4096):
                self._written += data
        except OSError:  # EIO: the other side is closed
            pass

    def finish(self) -> str:
        """Everything, once all who wrote to it have closed it."""
        self._reader.join()
        os.close(self._master)
        return self._written.decode()


@contextmanager
def console_on(terminal: Terminal) -> Iterator[Console]:
    with os.fdopen(terminal.slave, "w") as file:
        yield Console(file=file, width=terminal.columns, _environ={"TERM": "xterm-256color"})


def lines_seen(written: str) -> list[str]:
    """What a person reads in the end: the last that was drawn in each line, without colours."""
    drawn = (line.split(ERASE)[-1].split("\r")[-1] for line in written.replace("\r\n", "\n").split("\n"))
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).rstrip() for line in drawn]


def train(report: ConsoleReport) -> None:
    report.event("found [bold]server[/bold]")
    report.resume(10)
    report.record(record(11))
    report.event("checkpoint step-00000011 saved in 0.4 s")
    report.event("a save failed:\n\x1b[2Jdisk full", level="error")
    report.evaluated(11, {"reward/mean": 0.123456, "reward/best": 1.0})
    report.record(record(12))
    report.close()
    report.close()


EVENTS = [
    "found [bold]server[/bold]",
    "checkpoint step-00000011 saved in 0.4 s",
    "error: a save failed:",
    r"\x1b[2Jdisk full",
    "evaluation at step 11: reward/mean 0.1235, reward/best 1",
]


def test_on_a_terminal_events_stand_above_one_line_that_stays_at_the_end() -> None:
    terminal = Terminal(columns=80)

    with console_on(terminal) as console:
        train(ConsoleReport(console, 40))

    written = terminal.finish()
    *events, line = [line for line in lines_seen(written) if line]
    assert events == EVENTS
    assert re.fullmatch(r"step 12/40 .+ \S\S:\S\S reward 0\.812  staleness 1\.00  12,346 tokens/s", line)
    assert written.count(HIDE) == written.count(SHOW) == 1


def test_on_a_narrow_terminal_the_step_is_still_to_be_read() -> None:
    terminal = Terminal(columns=40)

    with console_on(terminal) as console:
        train(ConsoleReport(console, 40))

    line = [line for line in lines_seen(terminal.finish()) if line][-1]
    assert line.startswith("step 12/40 ") and "reward 0.812" in line
    assert len(line) <= 40


def test_in_a_pipe_there_are_lines_for_the_first_each_tenth_and_the_last_step_and_all_events() -> None:
    file = io.StringIO()
    report = ConsoleReport(Console(file=file, width=20), 25)

    report.event("[bold]started[/bold] from " + "x" * 100)
    report.resume(0)
    for step in range(1, 26):
        report.record(record(step))
    report.event("careful", level="warning")
    report.close()

    numbers = "reward 0.812  staleness 1.00  12,346 tokens/s"
    assert file.getvalue().splitlines() == [
        "[bold]started[/bold] from " + "x" * 100,
        *(f"step {step}/25  {numbers}" for step in (1, 10, 20, 25)),
        "warning: careful",
    ]


@pytest.mark.parametrize("environment", [{"FORCE_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_no_escape_goes_into_a_pipe_whatever_the_environment_says(environment: dict[str, str]) -> None:
    file = io.StringIO()

    train(ConsoleReport(Console(file=file, _environ=environment), 40))

    assert file.getvalue().splitlines() == EVENTS


def test_numbers_that_are_not_there_are_not_shown() -> None:
    file = io.StringIO()
    report = ConsoleReport(Console(file=file), 1)

    report.record(StepRecord(1, {"reward/mean": 0.5}))

    assert file.getvalue() == "step 1/1  reward 0.500\n"


def test_a_pipe_that_nobody_reads_any_more_does_not_end_training(caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    file = os.fdopen(writer, "w")
    reports = Reports([ConsoleReport(Console(file=file), 10)])

    reports.event("is anybody there?")
    reports.record(record(10))
    reports.close()

    assert "BrokenPipeError" in caplog.text
    with pytest.raises(BrokenPipeError):  # what it could not write is still in its buffer
        file.close()


# The room without what it exports, which would load torch: seconds, for nothing.
INTERRUPTED = """
import importlib.util, sys
sys.modules["chockstone.trainers"] = importlib.util.module_from_spec(importlib.util.find_spec("chockstone.trainers"))

from rich.console import Console
from chockstone.trainers.reports.console import ConsoleReport

report = ConsoleReport(Console(), 10)
report.resume(0)
raise KeyboardInterrupt
"""


def test_an_interrupt_that_nobody_handles_still_leaves_the_cursor_visible() -> None:
    terminal = Terminal(columns=80)

    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdin=subprocess.DEVNULL,
        stdout=terminal.slave,
        stderr=terminal.slave,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(terminal.slave)
    process.wait()

    written = terminal.finish()
    assert "KeyboardInterrupt" in written
    assert written.rindex(SHOW) > written.rindex(HIDE)
