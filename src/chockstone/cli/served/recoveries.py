"""Recoveries of a run, as its server wrote them down."""

from __future__ import annotations

from datetime import datetime

from chockstone.cli.client import Json, Server
from chockstone.cli.served.addresses import run_route
from chockstone.cli.served.checkpoint import parse_time
from chockstone.cli.terminal import print_json, print_line, print_table
from chockstone.cli.words import printable, spell_count, spell_duration


def list_recoveries(server: Server, run_id: str, *, now: datetime, as_json: bool) -> None:
    answer = server.get(f"{run_route(run_id)}/recoveries")
    if as_json:
        print_json(answer)
        return
    recoveries = answer["recoveries"]
    if not recoveries:
        print_line(f"run {printable(run_id)} was never brought back: nothing has gone wrong")
        return
    rows = [
        (
            f"{spell_duration((now - parse_time(each['at'])).total_seconds())} ago",
            printable(each["reason"]),
            _start(each),
            f"{each['replayed']:,}",
            f"{each['redone']:,}",
            f"{each['seconds']:.2f} s",
            _verdict(each),
        )
        for each in recoveries
    ]
    alarming = {index for index, each in enumerate(recoveries) if each["mismatched"] or each.get("lost")}
    columns = ("WHEN", "WHY", "FROM", "REPLAYED", "REDONE", "TOOK", "RESULT")
    print_table(columns, rows, right=("WHEN", "REPLAYED", "REDONE", "TOOK"), alarming=alarming)
    for each in recoveries:
        for note in (*_skipped(each), *each["notes"]):
            print_line(f"{each['at']}: {printable(note)}")


def _start(recovery: Json) -> str:
    """The archive's place in the run's journal is all of its name that tells anybody anything."""
    archive = recovery.get("archive")
    if archive is None:
        return "its beginning"
    return f"archive {printable(archive.rpartition('/')[2].partition('.')[0].lstrip('0') or '0')}"


def _verdict(recovery: Json) -> str:
    if recovery.get("lost"):
        return f"{spell_count(recovery['lost'], 'operation')} lost"
    if recovery["mismatched"]:
        return f"{recovery['mismatched']:,} of {spell_count(recovery['replayed'], 'result')} differ"
    return "the same" if recovery["matched"] else "nothing to compare"


def _skipped(recovery: Json) -> list[str]:
    return [f"passed over {each['archive']}: {each['reason']}" for each in recovery["skipped"]]
