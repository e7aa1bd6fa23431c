"""Deletes checkpoints of a store by name (``rm``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from chockstone.checkpoints import Store
from chockstone.checkpoints.errors import CheckpointMissing, StoreError
from chockstone.checkpoints.resume.attempts.places import FOLDER
from chockstone.checkpoints.resume.dependents import Dependents
from chockstone.checkpoints.retention.chain_facts import Dependent
from chockstone.checkpoints.stores.store import StoreEntry, check_name
from chockstone.cli.output.confirmation import is_confirmed
from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.formatting import format_count, format_duration, format_size
from chockstone.cli.output.terminal import print_json, print_line, print_stderr


def remove_names(store: Store, names: Sequence[str], *, now: datetime, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Remove each name that is there, and return the exit code. One failing delete stops no other.

    A checkpoint that another one of its run depends on is refused, unless that one goes, too.
    """
    for name in names:
        check_name(name)
    found, missing = _look(store, dict.fromkeys(names))
    for name in missing:
        print_stderr(f"chockstone: checkpoint {name!r} is not in {store.url}")
    dependents = Dependents(store.url)
    chain_facts = dependents.chain_facts([entry.name for entry in found])
    needed = chain_facts.needed([entry.name for entry in found])
    found = [entry for entry in found if entry.name not in needed]
    if found and not (dry_run or yes):
        if not _is_confirmed(found, now):
            print_stderr("nothing was removed")
            found = []
        chain_facts = dependents.chain_facts([entry.name for entry in found])  # an attempt may have begun meanwhile
        needed |= chain_facts.needed([entry.name for entry in found])
    for name, by in needed.items():
        print_stderr(_refusal(name, by))
    going = {entry.name: entry for entry in found if entry.name not in needed}
    removed: list[StoreEntry] = []
    failed: list[dict[str, str]] = []
    left: set[str] = set()
    for entry in (going[name] for name in chain_facts.in_removal_order(going)):
        if needing := [each for each in chain_facts.dependents.get(entry.name, ()) if each.name in left]:
            why = f"checkpoint {entry.name!r} is not removed: {needing[0]} depends on it and could not be removed"
            print_stderr(f"chockstone: {why}")
            failed.append({"name": entry.name, "error": why})
            left.add(entry.name)
            continue
        try:
            if not dry_run and not store.delete(entry.name):
                print_stderr(f"chockstone: checkpoint {entry.name!r} was removed by another process meanwhile")
                missing.append(entry.name)
                continue
        except StoreError as error:
            print_stderr(f"chockstone: {error}")
            failed.append({"name": entry.name, "error": str(error)})
            left.add(entry.name)
            continue
        removed.append(entry)
        if not as_json:
            print_line(f"{'would remove' if dry_run else 'removed'} {entry.name}, {format_size(entry.size)}")
    if as_json:
        listed = [{"name": entry.name, "size_bytes": entry.size} for entry in removed]
        refused = [{"name": name, "needed_by": [str(each) for each in by]} for name, by in needed.items()]
        print_json(
            {
                "store": store.url,
                "dry_run": dry_run,
                "removed": listed,
                "refused": refused,
                "missing": missing,
                "failed": failed,
            },
        )
    if failed:
        return ExitCode.UNREACHABLE
    return ExitCode.FAILED if missing or needed else 0


def _refusal(name: str, by: Sequence[Dependent]) -> str:
    """Names each checkpoint that needs it, and how to remove that one first."""
    commands = "; ".join(f"chockstone checkpoints rm {each.place}{FOLDER} {each.generation}" for each in by)
    return (
        f"chockstone: checkpoint {name!r} is not removed: {', '.join(map(str, by))} depends on it, and the next resume "
        f"would find no other checkpoint. Let the run save a newer checkpoint, or first remove the dependent ones: "
        f"{commands}"
    )


def _look(store: Store, names: Iterable[str]) -> tuple[list[StoreEntry], list[str]]:
    found: list[StoreEntry] = []
    missing: list[str] = []
    for name in names:
        try:
            found.append(store.stat(name))
        except CheckpointMissing:
            missing.append(name)
    return found, missing


def _is_confirmed(found: Sequence[StoreEntry], now: datetime) -> bool:
    ages = ((entry, format_duration((now - entry.modified_at).total_seconds())) for entry in found)
    total = format_size(sum(entry.size for entry in found))
    return is_confirmed(
        (f"{entry.name}  {format_size(entry.size)}, {age} old" for entry, age in ages),
        f"Remove {format_count(len(found), 'checkpoint')}, {total}?",
    )
