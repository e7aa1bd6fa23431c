"""The trash: what was removed and can still be brought back."""

from __future__ import annotations

from datetime import datetime

from chockstone.cli.client import LONG_SECONDS, Json, NotThere, Server, segment
from chockstone.cli.consent import is_confirmed
from chockstone.cli.served.addresses import is_address
from chockstone.cli.served.checkpoint import parse_time
from chockstone.cli.terminal import complain, print_json, print_line, print_table
from chockstone.cli.words import printable, spell_count, spell_duration, spell_size


def list_trash(server: Server, *, now: datetime, as_json: bool) -> None:
    entries = _entries(server)
    if as_json:
        print_json({"server": server.url, "entries": entries, "total_bytes": _total(entries)})
        return
    if not entries:
        print_line("the trash is empty")
        return
    rows = [
        (
            str(entry["trash_id"]),
            printable(entry["tinker_path"]),
            spell_size(entry["size_bytes"]),
            f"{spell_duration((now - parse_time(entry['discarded_at'])).total_seconds())} ago",
            _left(entry, now),
            printable(entry["reason"]),
        )
        for entry in entries
    ]
    print_table(("TRASH ID", "PATH", "SIZE", "REMOVED", "GONE IN", "REASON"), rows, right=("TRASH ID", "SIZE"))
    print_line(f"{spell_count(len(entries), 'checkpoint')}, {spell_size(_total(entries))} in the trash")


def restore(server: Server, word: str, *, name: str | None, as_json: bool) -> None:
    """Bring one back: by its id, or the newest of a path."""
    trash_id = _find(server, word) if is_address(word) else word
    path = server.post(f"trash/{segment(trash_id)}/restore", {} if name is None else {"name": name})["tinker_path"]
    if as_json:
        print_json({"trash_id": trash_id, "tinker_path": path})
    else:
        print_line(f"restored {printable(path)}")


def empty_trash(server: Server, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    entries = _entries(server)
    count, total = spell_count(len(entries), "checkpoint"), spell_size(_total(entries))
    if entries and not (yes or dry_run):
        lines = (f"{entry['tinker_path']}  {spell_size(entry['size_bytes'])}" for entry in entries)
        if not is_confirmed(lines, f"Remove {count}, {total}, for good?"):
            complain("nothing was removed")
            return
    freed = _total(entries) if dry_run else server.delete("trash", seconds=LONG_SECONDS)["freed_bytes"]
    if as_json:
        print_json({"server": server.url, "dry_run": dry_run, "entries": entries, "freed_bytes": freed})
    elif dry_run:
        for entry in entries:
            print_line(f"would remove {printable(entry['tinker_path'])}, {spell_size(entry['size_bytes'])}")
        print_line(f"would free {total}")
    else:
        print_line(f"freed {spell_size(freed)}")


def _entries(server: Server) -> list[Json]:
    return list(server.get("trash")["entries"])


def _find(server: Server, path: str) -> str:
    """Newest first, so the first is the last one removed."""
    for entry in _entries(server):
        if entry["tinker_path"] == path:
            return str(entry["trash_id"])
    raise NotThere(f"{path!r} is not in the trash; `chockstone checkpoints trash` shows what is")


def _total(entries: list[Json]) -> int:
    return sum(entry["size_bytes"] for entry in entries)


def _left(entry: Json, now: datetime) -> str:
    left = (parse_time(entry["purge_at"]) - now).total_seconds()
    return "next sweep" if left <= 0 else spell_duration(left)
