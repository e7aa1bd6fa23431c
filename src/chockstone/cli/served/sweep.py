"""Sweeps: what ``gc`` has a server do, by the server's own rules."""

from __future__ import annotations

from chockstone.cli.client import LONG_SECONDS, Json, Server
from chockstone.cli.terminal import print_json, print_line, print_table, spinner
from chockstone.cli.words import printable, spell_count, spell_size


def sweep_served(server: Server, run_id: str | None, *, dry_run: bool, as_json: bool) -> None:
    body = {"dry_run": dry_run} if run_id is None else {"dry_run": dry_run, "run_id": run_id}
    with spinner(f"{printable(server.url)} looks for what has to go"):
        report = server.post("sweep", body, seconds=LONG_SECONDS)
    if as_json:
        print_json({"server": server.url, **report})
        return
    print_report(report)


def print_report(report: Json) -> None:
    """What was done, or in a dry run would be, with each checkpoint."""
    dry_run = report["dry_run"]
    verb = "would remove" if dry_run else "removed"
    rows = [("kept", kept["tinker_path"], "", printable("; ".join(kept["reasons"]))) for kept in report["kept"]]
    rows += [
        (verb, gone["tinker_path"], spell_size(gone["size_bytes"]), printable(gone["reason"]))
        for gone in report["removed"]
    ]
    if rows:
        print_table(("ACTION", "PATH", "SIZE", "REASON"), rows, right=("SIZE",))
    count = spell_count(len(report["removed"]), "checkpoint")
    total, freed = sum(gone["size_bytes"] for gone in report["removed"]), report["freed_bytes"]
    later = "" if dry_run or freed >= total else f" ({spell_size(freed)} freed now, the rest with the trash)"
    print_line(f"{verb} {count}, {spell_size(total)}{later}; kept {len(report['kept']):,}")
