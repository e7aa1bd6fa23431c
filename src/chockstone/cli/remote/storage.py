"""Draws how much of a server's disk each user and run uses (``storage``)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from chockstone.cli.output.formatting import format_count, format_duration, format_size, printable, shorten
from chockstone.cli.output.terminal import print_alarm, print_json, print_line
from chockstone.cli.remote.checkpoint import parse_time
from chockstone.cli.remote.client import Json, Server

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_LABEL: Final = 72
_NARROWEST, _WIDEST = 10, 40


def show_storage(server: Server, *, runs: int, now: datetime, as_json: bool) -> None:
    report = server.get("storage")
    if as_json:
        print_json({"server": server.url, **report})
        return
    used, trash, disk = report["used"], report["trash"], report["disk"]
    print_line(f"{format_size(used['size_bytes'])} in {format_count(used['count'], 'checkpoint')}", style="bold")
    if report.get("quota_bytes") is not None:
        left = max(0, report["quota_bytes"] - used["size_bytes"])
        print_line(f"quota  {format_size(report['quota_bytes'])}, {format_size(left)} left")
    if trash["count"]:
        print_line(f"trash  {format_size(trash['size_bytes'])} in {format_count(trash['count'], 'checkpoint')}")
    free, reserve = disk.get("free_bytes"), disk["reserve_bytes"]
    if free is not None:  # a bucket does not say
        print_line(f"disk   {format_size(free)} free, {format_size(max(0, free - reserve))} of them for checkpoints")
        if free <= reserve:
            print_alarm("the disk is full up to its reserve: no checkpoint can be saved until space is freed")
    _print_bars("USERS", [(user["user_id"], user) for user in _largest(report["users"])])
    largest = _largest(report["runs"])
    _print_bars("RUNS", [(f"{run['run_id']} {run['base_model']}", run) for run in largest[:runs]])
    if runs and len(largest) > runs:
        rest = format_size(sum(run["size_bytes"] for run in largest[runs:]))
        print_line(f"and {format_count(len(largest) - runs, 'run')} more, {rest}; --runs {len(largest)} shows all")
    for pending in report.get("pending") or ():
        age = format_duration((now - parse_time(pending["since"])).total_seconds())
        print_line(f"being written for {age}: {printable(pending['tinker_path'])}")
    if damaged := (report.get("scrub") or {}).get("damaged"):
        print_alarm(
            f"the scrub found {format_count(damaged, 'checkpoint')} damaged; `chockstone checkpoints ls` lists them"
        )


def _largest(entries: Sequence[Json]) -> list[Json]:
    return sorted(entries, key=lambda entry: entry["size_bytes"], reverse=True)


def _print_bars(title: str, entries: Sequence[tuple[str, Json]]) -> None:
    if not entries:
        return
    labels = [shorten(printable(label), _LABEL) for label, _ in entries]
    margin = max(map(len, labels))
    width = min(_WIDEST, max(_NARROWEST, shutil.get_terminal_size().columns - margin - 40))
    most = max(entry["size_bytes"] for _, entry in entries)
    print_line()
    print_line(title, style="bold")
    for label, (_, entry) in zip(labels, entries, strict=True):
        size_bytes, quota = entry["size_bytes"], entry.get("quota_bytes")
        share = size_bytes / (quota or most or 1)
        of_quota = "" if quota is None else f" of {format_size(quota)}, {share:.0%}"
        line = f"{label.ljust(margin)}  {draw_bar(share, width)}  {format_size(size_bytes):>9}{of_quota}"
        line += f", {format_count(entry['count'], 'checkpoint')}"
        if quota is not None and share > 0.9:
            print_alarm(line)
        else:
            print_line(line)


def draw_bar(share: float, width: int) -> str:
    """Filled to ``share``, of which more than 1 is 1; something is never drawn as nothing."""
    share = min(1.0, max(0.0, share))
    if not _can_draw():
        return ("#" * round(share * width)).ljust(width, ".")
    eighths = max(round(share * width * 8), 1 if share else 0)
    full, rest = divmod(eighths, 8)
    return (_EIGHTHS[8] * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def _can_draw() -> bool:
    try:
        _EIGHTHS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
