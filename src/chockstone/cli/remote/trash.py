"""The trash of a server: deleted checkpoints that can be undeleted."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from chockstone.cli.output.confirmation import is_confirmed
from chockstone.cli.output.formatting import format_count, format_duration, format_size, printable, write_duration
from chockstone.cli.output.terminal import print_json, print_line, print_stderr, print_table, spinner
from chockstone.cli.remote.addresses import is_address, parse_path
from chockstone.cli.remote.checkpoint import get_checkpoint, parse_time
from chockstone.cli.remote.client import LONG_SECONDS, Json, NotThere, Server, ServerRefused, segment
from chockstone.wire.paths import TinkerPath

_NO_TRASH: Final = (
    "this server has no trash: it deletes checkpoints for good. Start it with `chockstone serve --trash 7d` to keep "
    "deleted checkpoints for a week"
)


def list_trash(server: Server, *, now: datetime, as_json: bool) -> None:
    trash = server.get("trash")
    entries = trash["entries"]
    if as_json:
        print_json({"server": server.url, **trash, "total_bytes": _total(entries)})
        return
    if not entries:
        print_line("the trash is empty" if _keeps(trash) else _NO_TRASH)
        return
    rows = [
        (
            str(entry["trash_id"]),
            printable(entry["tinker_path"]),
            format_size(entry["size_bytes"]),
            f"{format_duration((now - parse_time(entry['discarded_at'])).total_seconds())} ago",
            _left(entry, now),
            printable(entry["reason"]),
        )
        for entry in entries
    ]
    print_table(("TRASH ID", "PATH", "SIZE", "REMOVED", "PURGED IN", "REASON"), rows, right=("TRASH ID", "SIZE"))
    print_line(f"{format_count(len(entries), 'checkpoint')}, {format_size(_total(entries))} in the trash")


def undelete(server: Server, word: str, *, name: str | None, as_json: bool) -> None:
    """Take a checkpoint out of the trash: by its id, or the newest of a path."""
    trash = server.get("trash")
    entry = _find(trash, word)
    trash_id, path = str(entry["trash_id"]), str(entry["tinker_path"])
    try:
        answer = server.post(f"trash/{segment(trash_id)}/restore", {} if name is None else {"name": name})
    except ServerRefused as error:
        if name is not None or not _is_there(server, parse_path(path)):
            raise
        raise ServerRefused(f"{error}, with --as NAME") from None
    undeleted = str(answer["tinker_path"])
    if as_json:
        print_json({"trash_id": trash_id, "was": path, **answer})
        return
    print_line(f"undeleted {printable(path)}{f' as {printable(undeleted)}' if undeleted != path else ''}")
    if answer.get("lost_expiry"):
        print_line("its expiry had passed and is removed; set a new lifetime with `chockstone checkpoints ttl`")
    if spared := answer.get("spared_seconds"):
        print_line(f"retention rules spare it for {write_duration(spared)}")


def empty_trash(server: Server, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    trash = server.get("trash")
    entries = trash["entries"]
    used = [str(entry["tinker_path"]) for entry in entries if entry.get("in_use")]
    freeable = [entry for entry in entries if not entry.get("in_use")]
    count, total = format_count(len(freeable), "checkpoint"), format_size(_total(freeable))
    if freeable and not (yes or dry_run):
        lines = (f"{entry['tinker_path']}  {format_size(entry['size_bytes'])}" for entry in freeable)
        if not is_confirmed(lines, f"Remove {count}, {total}, for good?"):
            print_stderr("nothing was removed")
            return
    freed = _total(freeable)
    if not dry_run:
        with spinner(f"{printable(server.url)} empties its trash"):
            answer = server.delete("trash", seconds=LONG_SECONDS)
        freed, used = answer["freed_bytes"], answer.get("in_use") or []
    if as_json:
        document = {"server": server.url, "dry_run": dry_run, "entries": entries, "freed_bytes": freed, "in_use": used}
        print_json(document)
        return
    if dry_run:
        for entry in freeable:
            print_line(f"would remove {printable(entry['tinker_path'])}, {format_size(entry['size_bytes'])}")
    for path in used:
        print_line(
            f"{'would stay' if dry_run else 'stays'} {printable(path)}: a live sampler uses it until its session ends"
        )
    if not entries and not _keeps(trash):
        print_line(_NO_TRASH)
    else:
        print_line(f"{'would free' if dry_run else 'freed'} {format_size(freed)}")


def _keeps(trash: Json) -> bool:
    return trash.get("keeps_seconds") != 0


def _find(trash: Json, word: str) -> Json:
    """By its id, or of a path the one removed last: they are listed newest first."""
    for entry in trash["entries"]:
        if word in (str(entry["trash_id"]), entry["tinker_path"]):
            found: Json = entry
            return found
    if not _keeps(trash):
        raise NotThere(f"{word!r} cannot be undeleted: {_NO_TRASH}")
    if not is_address(word) and not word.isdecimal():
        raise ServerRefused(f"{word!r} is neither the id of a trash entry nor a path such as tinker://RUN/KIND/NAME")
    raise NotThere(f"{word!r} is not in the trash; `chockstone trash` lists it")


def _is_there(server: Server, path: TinkerPath) -> bool:
    try:
        get_checkpoint(server, path)
    except NotThere:
        return False
    return True


def _total(entries: list[Json]) -> int:
    return sum(entry["size_bytes"] for entry in entries)


def _left(entry: Json, now: datetime) -> str:
    left = (parse_time(entry["purge_at"]) - now).total_seconds()
    if entry.get("in_use") and left <= 0:
        return "sampler ends"
    return "next sweep" if left <= 0 else format_duration(left)
