"""Inventories: what ``ls`` says of a server's checkpoints."""

from __future__ import annotations

from datetime import datetime

from chockstone.cli.output.formatting import printable, shorten, spell_count, spell_size
from chockstone.cli.output.terminal import print_json, print_line, print_table, spinner
from chockstone.cli.remote.checkpoint import list_checkpoints
from chockstone.cli.remote.client import Server


def list_served(server: Server, run_id: str | None, kind: str | None, *, now: datetime, as_json: bool) -> None:
    with spinner(f"asking {printable(server.url)}"):
        found = [listed for listed in list_checkpoints(server, run_id) if kind in (None, listed.kind)]
    total_bytes = sum(listed.size_bytes for listed in found)
    damaged = sum(listed.damage is not None for listed in found)
    if as_json:
        entries = [listed.entry for listed in found]
        print_json({"server": server.url, "checkpoints": entries, "total_bytes": total_bytes, "damaged": damaged})
        return
    place = printable(server.url if run_id is None else f"{run_id} on {server.url}")
    if not found:
        print_line(f"no checkpoints in {place}")
        return
    rows = [
        (
            printable(listed.path),
            spell_size(listed.size_bytes),
            listed.age(now),
            shorten(printable(" ".join(f"{key}={value}" for key, value in listed.metadata.items())), 40),
            listed.state(now),
        )
        for listed in found
    ]
    alarming = {index for index, listed in enumerate(found) if listed.damage is not None}
    print_table(("PATH", "SIZE", "AGE", "METADATA", "STATE"), rows, right=("SIZE", "AGE"), alarming=alarming)
    alarm = f", {damaged:,} damaged" if damaged else ""
    print_line(f"{spell_count(len(found), 'checkpoint')}, {spell_size(total_bytes)}{alarm} in {place}")
