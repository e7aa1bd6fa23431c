"""Compares two archives (``diff``)."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from chockstone.checkpoints import Archive
from chockstone.checkpoints.restoring.diff import Change, Difference, compare
from chockstone.cli.local.targets import CommandTarget
from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.formatting import format_count, format_size, format_time, printable, shorten
from chockstone.cli.output.terminal import bytes_bar, print_json, print_line, print_table


def compare_targets(before: CommandTarget, after: CommandTarget, *, as_json: bool) -> int:
    """Print what changed, and return the exit code."""
    with before.open() as old, after.open() as new:
        with bytes_bar(f"{before.name} and {after.name}", old.size) as on_bytes:
            difference = compare(old, new, on_bytes=on_bytes)
        if as_json:
            print_json(_document(before.name, old, after.name, new, difference))
        else:
            print_line(f"--- {_headline(before.name, old)}")
            print_line(f"+++ {_headline(after.name, new)}")
            _print(difference)
    return 0 if difference.is_empty else ExitCode.FAILED


def _print(difference: Difference) -> None:
    if not difference.is_empty:
        rows = [(change.kind, change.what, printable(change.path), _detail(change)) for change in difference.changes]
        print_table(("CHANGE", "WHAT", "PATH", "DETAIL"), rows)
    counts = Counter(change.kind for change in difference.changes)
    changed = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    same = ", ".join(format_count(count, noun.removesuffix("s")) for noun, count in difference.same.items() if count)
    print_line("; ".join(part for part in (changed, f"the same: {same}" if same else "") if part) or "both are empty")


def _headline(name: str, archive: Archive) -> str:
    manifest = archive.manifest
    step = "" if manifest.step is None else f"step {manifest.step}, "
    return f"{printable(name)}  {step}{format_time(manifest.created_at)}, {format_size(archive.size)}"


def _detail(change: Change) -> str:
    extent = change.extent
    if extent is None:
        return " -> ".join(shorten(printable(side)) for side in (change.before, change.after) if side is not None)
    counted = f"{extent.differing_bytes:,} of {extent.of_bytes:,} bytes"
    if change.what == "tensor":
        counted = f"{change.before}  {extent.elements:,} of {extent.of_elements:,} elements, {counted}"
    return counted if extent.max_difference is None else f"{counted}, largest change {extent.max_difference:.6g}"


def _document(
    before_name: str, before: Archive, after_name: str, after: Archive, difference: Difference
) -> dict[str, Any]:
    return {
        "before": _facts(before_name, before),
        "after": _facts(after_name, after),
        "same": difference.is_empty,
        "unchanged": dict(difference.same),
        "changes": [asdict(change) for change in difference.changes],
    }


def _facts(name: str, archive: Archive) -> dict[str, Any]:
    manifest = archive.manifest
    return {"name": name, "step": manifest.step, "created_at": manifest.created_at, "size_bytes": archive.size}
