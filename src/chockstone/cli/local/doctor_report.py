"""Prints what the doctor found and repaired."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.formatting import format_count, format_size, printable
from chockstone.cli.output.terminal import print_alarm, print_json, print_line
from chockstone.engine.doctor.explanations import EXPLANATIONS
from chockstone.engine.doctor.findings import Finding, FindingKind
from chockstone.engine.doctor.repairs import AllowedRepairs, Repair
from chockstone.engine.doctor.visit import Visit

_SHOWN: Final = 20  # of one kind; JSON has them all
_REBUILT: Final = (
    "Archives do not record who may read a checkpoint and when it expires: the repaired ones are private and do not "
    "expire. Publish them or set their lifetimes again. If the catalog was lost, checkpoints from its trash are back."
)
_NOT_IN_ARCHIVES: Final = (
    "API keys, policies, lifetimes and publications are not in archives: those of the lost catalog are gone. Create "
    "keys with `chockstone keys create USER` before a server starts on any address but loopback; then set the policies."
)


def report(
    data: Path, visit: Visit, allowed: AllowedRepairs | None, *, dry_run: bool, as_json: bool, was_lost: bool = False
) -> int:
    """Print it, and return the exit code: whether problems are left.

    ``was_lost``: a rebuild was asked for where there was no catalog.
    """
    if as_json:
        print_json({**_document(data, visit, dry_run=dry_run), "catalog_was_lost": was_lost})
    else:
        _print(data, visit, allowed, dry_run=dry_run)
        if was_lost:
            print_line(_NOT_IN_ARCHIVES)
    return ExitCode.FAILED if visit.examination.problems or any(repair.failure for repair in visit.repairs) else 0


def _print(data: Path, visit: Visit, allowed: AllowedRepairs | None, *, dry_run: bool) -> None:
    examination = visit.examination
    place = printable(str(data))
    known = format_count(examination.checkpoints, "checkpoint")
    archives = f"{format_count(examination.archives, 'archive')}, {format_size(examination.size_bytes)}"
    print_line(f"{place}: {known} in the catalog, {archives} in the store")
    if not visit.has_catalog:
        print_line("There is no catalog: `chockstone doctor --rebuild` makes one from the store.")
    if visit.is_served:
        print_line(
            f"A server is running here, with {format_count(examination.saves_under_way, 'save')} in progress; "
            "its unfinished work may be listed as a finding."
        )
    _print_repairs(visit.repairs)
    for kind, findings in groupby(examination.findings, key=lambda finding: finding.kind):
        _print_findings(kind, list(findings))
    print_line()
    print_line(_summary(visit, allowed, dry_run=dry_run))


def _print_repairs(repairs: Sequence[Repair]) -> None:
    if not repairs:
        return
    print_line()
    for repair in repairs:
        subject = printable(repair.finding.subject)
        if repair.failure:
            print_alarm(f"  {subject}: not repaired: {printable(repair.failure)}")
        else:
            print_line(f"  {subject}: {printable(repair.done)}")
    freed_bytes = sum(repair.freed_bytes for repair in repairs)
    done = sum(not repair.failure for repair in repairs)
    freed = f", {format_size(freed_bytes)} freed" if freed_bytes else ""
    print_line(f"repaired {format_count(done, 'finding')}{freed}", style="bold")
    if any(repair.finding.kind is FindingKind.ORPHAN and not repair.failure for repair in repairs):
        print_line(_REBUILT)


def _print_findings(kind: FindingKind, findings: Sequence[Finding]) -> None:
    words = EXPLANATIONS[kind]
    size_bytes = sum(finding.size_bytes for finding in findings)
    size = f", {format_size(size_bytes)}" if size_bytes else ""
    show = print_line if kind.is_harmless else print_alarm
    print_line()
    show(f"{words.title(len(findings))}{size}")
    print_line(f"  {words.cause}")
    print_line(f"  {words.remedy}")
    for finding in findings[:_SHOWN]:
        size = f"  {format_size(finding.size_bytes)}" if finding.size_bytes else ""
        detail = f"  {printable(finding.detail)}" if finding.detail else ""
        print_line(f"    {printable(finding.subject)}{size}{detail}")
    if len(findings) > _SHOWN:
        print_line(f"    … and {len(findings) - _SHOWN:,} more; --json lists all")


def _summary(visit: Visit, allowed: AllowedRepairs | None, *, dry_run: bool) -> str:
    problems = visit.examination.problems
    if not problems:
        return "healthy: store and catalog agree"
    size_bytes = sum(finding.size_bytes for finding in problems)
    count = format_count(len(problems), "finding") + (f", {format_size(size_bytes)}" if size_bytes else "")
    able = sum((allowed or AllowedRepairs()).includes(finding.kind) for finding in problems)
    if allowed is not None and not dry_run:
        return f"{count} left; the remedies are listed above"
    if not able:
        command = "this command" if allowed else "`chockstone doctor --fix`"
        return f"{count}; {command} repairs none: the remedies are above"
    share = "all" if able == len(problems) else f"{able:,}"
    return f"{count}; {'would repair' if allowed else '`chockstone doctor --fix` repairs'} {share}"


def _document(data: Path, visit: Visit, *, dry_run: bool) -> dict[str, Any]:
    examination = visit.examination
    return {
        "data": str(data),
        "has_catalog": visit.has_catalog,
        "is_served": visit.is_served,
        "dry_run": dry_run,
        "checkpoints": examination.checkpoints,
        "archives": examination.archives,
        "size_bytes": examination.size_bytes,
        "trash": examination.trash,
        "saves_under_way": examination.saves_under_way,
        "is_healthy": not examination.problems,
        "repairs": [
            {**_finding(each.finding), "done": each.done, "failure": each.failure, "freed_bytes": each.freed_bytes}
            for each in visit.repairs
        ],
        "findings": [{**_finding(each), "remedy": EXPLANATIONS[each.kind].remedy} for each in examination.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "subject": finding.subject,
        "size_bytes": finding.size_bytes,
        "detail": finding.detail,
    }
