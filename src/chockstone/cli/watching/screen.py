"""The screen: an overview as lines of text, for a terminal of any width and height, or for a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from rich.text import Text

from chockstone.cli.output.formatting import format_count, format_duration, format_size, printable, shorten
from chockstone.cli.output.short_ids import shorten_ids
from chockstone.cli.output.terminal import lay_out
from chockstone.cli.remote.checkpoint import parse_time
from chockstone.cli.remote.client import Json
from chockstone.cli.watching.overview import Outage, RunLine, ServerOverview
from chockstone.cli.watching.sparkline import BLOCKS, sparkline

PLAIN_WIDTH: Final = 100
_LABEL: Final = 9
_BAR: Final = 10
_MODEL: Final = 16
_STATES: Final = {"ready": "green", "lost": "red", "held": "red", "waiting": "yellow", "recovering": "yellow"}
_WORKERS: Final = {"ready": "green", "failing": "red", "stopped": "red"}
_LEAST_CURVE: Final = 6
_FEW: Final = 4  # lines
_HELP: Final = "q quits"


def draw(
    overview: ServerOverview,
    *,
    width: int,
    height: int | None = None,
    outage: Outage | None = None,
    now: datetime | None = None,
    levels: str = BLOCKS,
) -> list[Text]:
    """The lines of the screen. No line is longer than ``width``; there are at most ``height``, None: any number.

    On a low screen runs, problems and the server share the lines: each has about a third.
    """
    head = [*_outage(overview, outage, now), *_head(overview, width)]
    tail = [*_problems(overview, width), *_recoveries(overview, now or overview.at)]
    if height is None:
        lines = [*head, Text(), *_runs(overview, width, levels), *tail]
    else:
        room = height - 1
        head = head[: max(2, room // 2)]
        runs = list(_runs(overview, width, levels))
        tail = tail[: max(room - len(head) - len(runs), (room - len(head)) // 2)]
        runs = _cut(runs, room - len(head) - len(tail))
        lines = [*head, *runs, *tail, Text(_HELP, style="dim")]
    return [_fit(line, width) for line in lines]


def _cut(lines: list[Text], room: int) -> list[Text]:
    """The first lines; where there are a few, the last of them says that there are more."""
    if len(lines) <= room or room < _FEW:
        return lines[: max(0, room)]
    return [*lines[: room - 1], Text("…", style="dim")]


def _fit(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _head(overview: ServerOverview, width: int) -> Iterator[Text]:
    server = overview.server
    title = f"chockstone {printable(str(server['version']))} at {printable(overview.url)}"
    up = f"up {format_duration(server['uptime_seconds'])}{', stopping' if server['is_stopping'] else ''}"
    clock = f"{overview.at:%H:%M:%S} UTC"
    gap = max(2, width - len(title) - len(up) - len(clock) - 2)
    yield Text.assemble((title, "bold"), "  ", up, " " * gap, (clock, "dim"))
    yield _worker(server["worker"])
    rates, queue = server["tokens_per_second"], server["queue"]
    waits = queue.get("oldest_wait_seconds")
    oldest = "" if waits is None else f", oldest {format_duration(waits)}"
    yield _labelled("tokens/s", f"{rates['trained']:,.0f} trained, {rates['sampled']:,.0f} sampled")
    operations, samples = format_count(queue["operations"], "operation"), format_count(queue["samples"], "sample")
    yield _labelled("queue", f"{operations}, {samples}{oldest}")
    yield _disk(server.get("disk"))
    states = ", ".join(f"{count:,} {state}" for state, count in server["runs"].items() if count) or "none"
    yield _labelled("runs", states)


def _labelled(label: str, *parts: str | tuple[str, str]) -> Text:
    return Text.assemble((f"{label:<{_LABEL}}", "dim"), *parts)


def _worker(worker: Json) -> Text:
    state = printable(str(worker["state"]))
    facts = [str(worker[name]) for name in ("device", "dtype") if worker.get(name)]
    if worker.get("memory_bytes"):
        facts.append(format_size(worker["memory_bytes"]))
    facts += [
        f"{printable(gpu['name'])} {format_size(gpu['used_bytes'])}/{format_size(gpu['total_bytes'])}"
        for gpu in worker.get("gpus", [])
    ]
    if worker["restarts"]:
        facts.append(format_count(worker["restarts"], "restart"))
    if worker.get("trouble"):
        facts.append(str(worker["trouble"]))
    return _labelled("worker", (state, _WORKERS.get(state, "yellow")), *(f", {printable(fact)}" for fact in facts))


def _disk(disk: Json | None) -> Text:
    if disk is None:
        return _labelled("disk", "not known")
    filled = round(_BAR * min(1.0, disk["used_bytes"] / max(1, disk["total_bytes"])))
    words = f"{format_size(disk['free_bytes'])} free of {format_size(disk['total_bytes'])}"
    words += f", {format_size(disk['reserve_bytes'])} reserved"
    days = disk.get("full_in_days")
    if days is not None:
        words += f", full in {format_duration(days * 86_400)}"
    is_tight = disk["free_bytes"] <= disk["reserve_bytes"] or (days is not None and days < 1)
    return _labelled("disk", f"[{'#' * filled}{'.' * (_BAR - filled)}] ", (words, "red" if is_tight else ""))


def _outage(overview: ServerOverview, outage: Outage | None, now: datetime | None) -> Iterator[Text]:
    if outage is not None:
        lasts = format_duration(outage.lasts(now or overview.at).total_seconds())
        yield Text(f"reconnecting for {lasts}: {printable(outage.reason)}", style="bold red")


def _runs(overview: ServerOverview, width: int, levels: str) -> Iterator[Text]:
    if not overview.runs:
        yield Text("no runs: a training script that connects to this server appears here", style="dim")
        return
    names = shorten_ids([run.run_id for run in overview.runs])
    headers = ("RUN", "MODEL", "STATE", "STEP", "LOSS", "TOKENS/S", "QUEUE")
    rows = [_cells(run, names[run.run_id]) for run in overview.runs]
    first, *lines = lay_out(headers, rows, right=("STEP", "LOSS", "TOKENS/S", "QUEUE"))
    table = max(map(len, (first, *lines))) + 2
    curve = min(40, width - table)
    has_curve = curve >= _LEAST_CURVE
    yield Text(f"{first:<{table}}LOSS CURVE"[: width if has_curve else table], style="bold")
    for run, line in zip(overview.runs, lines, strict=True):
        text = Text(f"{line:<{table}}" if has_curve else line)
        text.highlight_words([f" {printable(run.state)} "], _STATES.get(run.state, "dim"))
        if has_curve:
            text.append(sparkline(run.curve, curve, levels=levels), style="cyan")
        yield text
        if run.waits_for and run.is_awake:
            yield Text(f"  {printable(run.waits_for)}", style="yellow")


def _cells(run: RunLine, name: str) -> Sequence[str]:
    return (
        printable(name),
        printable(shorten(run.base_model.rpartition("/")[2], _MODEL)),
        printable(run.state),
        "" if run.step is None else f"{run.step:,}",
        "" if run.loss is None else f"{run.loss:.4g}",
        "" if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}",
        f"{run.queue_depth:,}" if run.queue_depth else "",
    )


def _problems(overview: ServerOverview, width: int) -> Iterator[Text]:
    for problem in overview.server["problems"]:
        for number, line in enumerate(_wrap(problem["what"], width)):
            yield Text(f"{'  ' if number else '! '}{line}", style="bold red")
        for line in _wrap(problem["to_do"], width):
            yield Text(f"  {line}")


def _wrap(text: str, width: int) -> list[str]:
    """Lines that have room for two letters before them."""
    return textwrap.wrap(printable(text), max(20, width - 2))


def _recoveries(overview: ServerOverview, now: datetime) -> Iterator[Text]:
    names = shorten_ids([each["run_id"] for each in overview.recoveries] + [run.run_id for run in overview.runs])
    for number, each in enumerate(overview.recoveries):
        if not number:
            yield Text("last recoveries", style="bold")
        ago = format_duration((now - parse_time(each["at"])).total_seconds())
        differs = f", {each['mismatched']:,} different" if each["mismatched"] else ""
        lost = f", {each['lost']:,} lost" if each.get("lost") else ""
        run, seconds = printable(names[each["run_id"]]), f"{each['seconds']:.1f} s"
        words = f"{ago:>7} ago  {run}  {each['replayed']:,} replayed in {seconds}, {each['matched']:,} identical"
        yield Text.assemble(words, (f"{differs}{lost}", "red"))
