"""Lists the recoveries of a run, as its server recorded them (``runs recoveries``)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from chockstone.cli.output.formatting import format_count, format_duration, printable
from chockstone.cli.output.terminal import print_json, print_line, print_table
from chockstone.cli.remote.addresses import run_route
from chockstone.cli.remote.checkpoint import parse_time
from chockstone.cli.remote.client import Json, Server

_COLUMNS: Final = ("WHEN", "FROM", "REPLAYED", "UNFINISHED", "TIME", "RESULT", "REASON")
_UNNAMED: Final = "operations that return no numbers: the creation of the run, loads, or weights for a sampler"


def list_recoveries(server: Server, run_id: str, *, now: datetime, as_json: bool) -> None:
    answer = server.get(f"{run_route(run_id)}/recoveries")
    if as_json:
        print_json(answer)
        return
    recoveries = answer["recoveries"]
    if not recoveries:
        print_line(f"run {printable(run_id)} has had no recovery: no crash, and no restart of the server")
        return
    rows = [
        (
            f"{format_duration((now - parse_time(each['at'])).total_seconds())} ago",
            _start(each),
            f"{each['replayed']:,}",
            f"{each['redone']:,}",
            f"{each['seconds']:.2f} s",
            _verdict(each),
            printable(each["reason"]),
        )
        for each in recoveries
    ]
    alarming = {index for index, each in enumerate(recoveries) if each["mismatched"] or each.get("lost")}
    print_table(_COLUMNS, rows, right=("WHEN", "REPLAYED", "UNFINISHED", "TIME"), alarming=alarming)
    for each in recoveries:
        for note in (*_skipped(each), *_exceptions(each), *each["notes"]):
            print_line(f"{each['at']}: {printable(note)}")


def _start(recovery: Json) -> str:
    """The archive's name ends in the last operation that it holds."""
    archive = recovery.get("archive")
    if archive is None:
        return "start of the run"
    return f"archive {printable(archive.rpartition('/')[2].partition('.')[0].lstrip('0') or '0')}"


def _verdict(recovery: Json) -> str:
    """Such as ``174 identical, 1 not compared``."""
    if recovery.get("lost"):
        return f"{format_count(recovery['lost'], 'operation')} lost"
    left = _count_uncompared(recovery)
    counts = (
        (recovery["matched"], "identical"),
        (recovery["mismatched"], "different"),
        (left, "not compared"),
    )
    return ", ".join(f"{count:,} {what}" for count, what in counts if count) or "nothing replayed"


def _count_uncompared(recovery: Json) -> int:
    count: int = recovery["replayed"] - recovery["matched"] - recovery["mismatched"]
    return count


def _exceptions(recovery: Json) -> Iterator[str]:
    """Which operations differed, and which were not compared. A server of an earlier version does not name them."""
    for title, name, count, unnamed in (
        ("different", "differing", recovery["mismatched"], ""),
        ("not compared", "uncompared", _count_uncompared(recovery), _UNNAMED),
    ):
        if not count:
            continue
        named = recovery.get(name) or []
        words = [f"operation {each['sequence']} ({each['command']}): {each['reason']}" for each in named]
        if count > len(named) > 0:
            words.append(f"and {count - len(named):,} more")
        if said := "; ".join(words) or unnamed:
            yield f"{count:,} {title}: {said}"


def _skipped(recovery: Json) -> list[str]:
    return [f"skipped archive {each['archive']}: {each['reason']}" for each in recovery["skipped"]]
