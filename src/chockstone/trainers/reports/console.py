"""The console report: a progress line on a terminal, and a plain line every few steps elsewhere."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from chockstone.trainers.reports.reports import Level, StepRecord

_PLAIN_EVERY: Final = 10  # steps
_REFRESHES_PER_SECOND: Final = 4
_SPEED_PERIOD_SECONDS: Final = 3600.0  # a step may take minutes, and an estimate needs two steps in the period
_STYLES: Final[dict[Level, str]] = {"info": "", "warning": "yellow", "error": "red"}
_SHOWN: Final = (  # metric and its format
    ("reward/mean", "reward {:.3f}"),
    ("staleness/mean", "staleness {:.2f}"),
    ("tokens/per_second", "{:,.0f} tokens/s"),
)


class ConsoleReport:
    """Shows progress with reward, staleness, speed and time left, and prints events above it.

    Without a terminal, it prints one line for the first, every tenth and the last step, and for each event.
    """

    def __init__(self, console: Console, total_steps: int) -> None:
        self._console = console
        self._total_steps = total_steps
        self._is_terminal = console.is_terminal and not console.is_dumb_terminal and console.file.isatty()
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def resume(self, step: int) -> None:
        if not self._is_terminal:
            return
        steps_width = len(f"step {self._total_steps}/{self._total_steps}")
        self._progress = Progress(  # a narrow terminal truncates the last columns first
            TextColumn("step {task.completed:.0f}/{task.total:.0f}", table_column=_column(steps_width)),
            BarColumn(bar_width=16),
            TimeRemainingColumn(compact=True, table_column=_column(len("00:00"))),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=self._console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            speed_estimate_period=_SPEED_PERIOD_SECONDS,
            redirect_stdout=sys.stdout.isatty(),  # prints appear above the line; a pipe is not redirected
            redirect_stderr=sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("", total=self._total_steps, completed=step, numbers="")
        atexit.register(self.close)  # so that the cursor becomes visible again in any case
        self._progress.start()

    def record(self, record: StepRecord) -> None:
        numbers = _format_metrics(record.metrics)
        if self._progress:
            self._progress.update(self._task, completed=record.step, numbers=numbers)
        elif record.step % _PLAIN_EVERY == 0 or record.step in (1, self._total_steps):
            self._print(f"step {record.step}/{self._total_steps}  {numbers}")

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self._print(f"evaluation at step {step}: {numbers}")

    def event(self, text: str, *, level: Level = "info") -> None:
        self._print(text if level == "info" else f"{level}: {text}", style=_STYLES[level])

    def close(self) -> None:
        """Stop the progress line and leave its last state on the screen."""
        progress, self._progress = self._progress, None
        if progress:
            progress.stop()
            atexit.unregister(self.close)

    def _print(self, text: str, *, style: str = "") -> None:
        lines = "\n".join(_printable(line) for line in text.splitlines())
        if self._is_terminal:
            self._console.print(Text(lines, style=style), soft_wrap=True)
        else:
            # Not console.print: it raises SystemExit for a closed pipe (`| head`), which would end training.
            self._console.file.write(f"{lines}\n")
            self._console.file.flush()


def _column(least_width: int) -> Column:
    return Column(no_wrap=True, min_width=least_width)


def _format_metrics(metrics: Mapping[str, float]) -> str:
    return "  ".join(form.format(metrics[name]) for name, form in _SHOWN if name in metrics)


def _printable(text: str) -> str:
    """Escape control characters: events quote texts of servers and environments."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
