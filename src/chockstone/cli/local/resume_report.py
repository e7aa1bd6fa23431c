"""Explains a chain of attempts (``resume explain``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, takewhile
from typing import Final

from chockstone.checkpoints.errors import CheckpointMissing
from chockstone.checkpoints.resume import ResumeReport, Verdict, explain, recorded
from chockstone.checkpoints.resume.attempts.places import FOLDER
from chockstone.checkpoints.resume.checkpointer_directory import ORIGIN
from chockstone.checkpoints.resume.walk.report import CandidateReport
from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.formatting import format_count, format_size, printable
from chockstone.cli.output.terminal import print_alarm, print_json, print_line, print_table, spinner
from chockstone.integrations.flyte.layouts import Derivation, recognise

_ALIKE: Final = 4  # places in a row of which the same is said: so many are one line
_COLOURS: Final[Mapping[Verdict, str]] = {
    Verdict.VERIFIED: "green",
    **dict.fromkeys((Verdict.UNVERIFIED, Verdict.SUPERSEDED, Verdict.FOREIGN, Verdict.POISONED), "yellow"),
    **dict.fromkeys((Verdict.ABSENT, Verdict.EMPTY, Verdict.PARTIAL, Verdict.SETTLED, Verdict.UNTRIED), "dim"),
    Verdict.CORRUPT: "red",
    **dict.fromkeys((verdict for verdict in Verdict if verdict.stops), "bold red"),
}
_REMEDIES: Final[Mapping[Verdict, str]] = {
    Verdict.DENIED: "give these credentials permission to list and read the place, or use other credentials",
    Verdict.UNREACHABLE: "try again when the store answers; on_unreadable='older' would restore an older one",
    Verdict.INCOMPATIBLE: "upgrade chockstone on the machine that resumes",
    Verdict.LOCAL: "free disk space or memory on this machine, or raise its limits",
}
_EXHAUSTED: Final = (
    "check the checkpoints with `chockstone checkpoints verify` (root or PLACE.ckpt); put good ones back from "
    "a backup, or start from zero in another root, or with fresh_start=True for one start"
)


def explain_now(uri: str, *, identity: str | Mapping[str, str] | None, sources: Sequence[str], as_json: bool) -> int:
    """Print what would be restored now, and return the exit code."""
    attempt, earlier = _before(uri)
    with spinner(f"looking at {printable(uri)}"):
        report = explain(uri, identity=identity, sources=sources, attempt=attempt, earlier=earlier)
    return _show(report, as_json=as_json)


def _before(uri: str) -> tuple[int | None, list[tuple[int, str]]]:
    """Which attempt a path of Flyte's is, and where those before it are. Not by this machine's environment."""
    derived = recognise(uri.rstrip("/").removesuffix(FOLDER), None, {})
    return (derived.attempt, list(derived.older())) if isinstance(derived, Derivation) else (None, [])


def show_recorded(uri: str, *, as_json: bool) -> int:
    """Print what the last attempt wrote down, and return the exit code."""
    try:
        report = recorded(uri)
    except CheckpointMissing as error:
        raise CheckpointMissing(f"{error}; leave out --recorded to search now") from None
    return _show(report, as_json=as_json)


def _show(report: ResumeReport, *, as_json: bool) -> int:
    if as_json:
        print_json(asdict(report))
    else:
        _print(report)
    return ExitCode.FAILED if report.outcome in ("blocked", "exhausted", "superseded") else 0


def _print(report: ResumeReport) -> None:
    parent = _common_parent([each.uri for each in report.looked])
    _fact("place", report.place)
    _fact("attempt", "" if report.attempt is None else str(report.attempt))
    _fact("identity", " ".join(f"{key}={value}" for key, value in report.identity.items()))
    _fact("below", parent)
    if report.looked:
        print_line()
        rows = [_row(group, report.choice, parent) for group in _grouped(report)]
        print_table(
            ("  VERDICT", "ATTEMPT", "GENERATION", "STEP", "ORIGIN", "PLACE", "REASON"),
            [row.cells for row in rows],
            right=("ATTEMPT", "STEP"),
            first_styles=[row.style for row in rows],
        )
        print_line()
    _print_outcome(report)
    _fact("steps lost", _steps_lost(report))
    received = f"{format_count(report.requests, 'request')}, {format_size(report.size_bytes)}"
    _fact("cost", f"{received}, {report.milliseconds:,.0f} ms")
    for warning in report.warnings:
        print_alarm(f"{'warning':<12}{printable(str(warning))}")
    for note in report.notes:
        _fact("note", str(note))


def _print_outcome(report: ResumeReport) -> None:
    chosen = report.choice
    if chosen is not None:
        number = "" if chosen.attempt is None else f" of attempt {chosen.attempt}"
        step = "" if chosen.step is None else f", step {chosen.step:,}"
        did = "restored" if report.outcome == "restored" else "would restore"
        _fact("outcome", f"{did} {_name(chosen)}{number}{step}")
        _fact("from", chosen.uri)
        if chosen.generation is None:
            _fact("note", "tasks of Flyte restore such files; Resume in your own loop does not")
    elif report.outcome == "fresh":
        is_foreign = any(each.verdict is Verdict.FOREIGN for each in report.looked)
        if report.settings.get("fresh_start") is True:
            _fact("outcome", "a fresh start, because of fresh_start=True")
        elif is_foreign:
            _fact("outcome", "a fresh start: the place holds checkpoints of another run, and none of this run")
            _fact(
                "to do",
                "if this run was moved or renamed, give its old name as --identity, and to Resume as identity=",
            )
        else:
            _fact("outcome", "a fresh start: the place holds no checkpoint")
            if not any(each.verdict is Verdict.PARTIAL for each in report.looked):
                _fact("to do", "nothing, if this is the first start; otherwise check the URI")
    else:
        _alarm("outcome", _refusal(report))
        _fact("to do", _remedy(report))


def _name(chosen: CandidateReport) -> str:
    if chosen.generation is None:
        return "the files that Flyte's own checkpoint wrote"
    return f"{'checkpoint' if chosen.origin == ORIGIN else 'generation'} {chosen.generation}"


def _refusal(report: ResumeReport) -> str:
    if report.outcome == "exhausted":
        return "exhausted: checkpoints were saved, and none of them can be used; the run does not start from zero"
    worst = _worst(report)
    if report.outcome == "blocked" and worst is not None:
        return f"blocked by {worst.uri}, {worst.verdict}: no older checkpoint replaces it, and no run starts from zero"
    return str(report.outcome)


def _remedy(report: ResumeReport) -> str:
    if report.outcome == "exhausted":
        return _EXHAUSTED
    worst = _worst(report)
    return "" if worst is None else _REMEDIES[worst.verdict]


def _worst(report: ResumeReport) -> CandidateReport | None:
    return next((each for each in report.looked if each.verdict.stops), None)


def _steps_lost(report: ResumeReport) -> str:
    if report.choice is None:
        return ""
    return "unknown: a newer checkpoint cannot be read" if report.steps_lost is None else str(report.steps_lost)


@dataclass(frozen=True, slots=True)
class _Row:
    cells: tuple[str, ...]
    style: str


def _grouped(report: ResumeReport) -> Iterator[list[CandidateReport]]:
    """Neighbours of which the same is to be said, if they are many; else each by itself."""

    def said(each: CandidateReport) -> tuple[object, ...]:
        return each is report.choice, each.generation, each.step, each.verdict, each.origin, each.reason

    for _, neighbours in groupby(report.looked, said):
        group = list(neighbours)
        if len(group) >= _ALIKE and group[0].generation is None:
            yield group
        else:
            yield from ([each] for each in group)


def _row(group: Sequence[CandidateReport], choice: CandidateReport | None, parent: str) -> _Row:
    first, last = group[0], group[-1]
    mark = "* " if first == choice else "  "
    attempts = [str(each.attempt) for each in (first, last) if each.attempt is not None]
    places = [each.uri.removeprefix(parent) for each in (first, last)]
    cells = (
        mark + first.verdict,
        "…".join(dict.fromkeys(attempts)),
        first.generation or "",
        "" if first.step is None else str(first.step),
        first.origin,
        " … ".join(dict.fromkeys(places)) + (f" ({len(group)})" if len(group) > 1 else ""),
        first.reason,
    )
    return _Row(tuple(map(printable, cells)), _COLOURS[first.verdict])


def _common_parent(uris: Sequence[str]) -> str:
    """What all places begin with, up to a slash; nothing where that is less than a bucket and a folder."""
    common = [parts[0] for parts in takewhile(_are_same, zip(*(uri.split("/")[:-1] for uri in uris), strict=False))]
    return "/".join(common) + "/" if len(common) > 3 else ""  # scheme, nothing, bucket


def _are_same(parts: tuple[str, ...]) -> bool:
    return len(set(parts)) == 1


def _fact(name: str, value: str) -> None:
    if value:
        print_line(f"{name:<12}{printable(value)}")


def _alarm(name: str, value: str) -> None:
    print_alarm(f"{name:<12}{printable(value)}")
