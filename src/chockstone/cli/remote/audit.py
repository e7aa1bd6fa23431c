"""Lists the audit log of a server (``audit``)."""

from __future__ import annotations

from datetime import date
from typing import Final

from chockstone.cli.output.formatting import printable, shorten
from chockstone.cli.output.terminal import print_json, print_line, print_table, spinner
from chockstone.cli.remote.checkpoint import parse_time
from chockstone.cli.remote.client import Json, Server

_LONG: Final = 60  # characters of details


def list_audit(server: Server, *, day: date | None, run_id: str | None, last: int, as_json: bool) -> None:
    """Print the newest ``last`` entries, oldest first; 0: all."""
    with spinner(f"asking {printable(server.url)}"):
        entries = server.get("audit", None if day is None else {"day": day.isoformat()})["entries"]
    if run_id is not None:
        entries = [entry for entry in entries if entry.get("model_id") == run_id]
    shown = entries[-last:] if last else entries
    if as_json:
        print_json({"server": server.url, "entries": shown, "total_count": len(entries)})
        return
    if not entries:
        print_line("no audit entries")
        return
    print_table(("TIME (UTC)", "EVENT", "OWNER", "PATH", "DETAILS"), [_row(entry) for entry in shown])
    if len(shown) < len(entries):
        print_line(f"{len(shown):,} of {len(entries):,} entries; --last 0 lists all")


def _row(entry: Json) -> tuple[str, ...]:
    details = dict(entry.get("event_details") or {})
    owner = str(details.pop("owner", ""))
    if entry.get("purpose"):
        details = {"purpose": entry["purpose"], **details}
    spelled = " ".join(f"{name}={value}" for name, value in details.items() if value not in (None, "", [], {}))
    return (
        f"{parse_time(entry['timestamp']):%Y-%m-%d %H:%M:%S}",
        printable(str(entry["event"])),
        printable(owner),
        printable(str(entry.get("tinker_path") or entry.get("model_id") or "")),
        shorten(printable(spelled), _LONG),
    )
