"""Recoveries of a run, as its server wrote them down."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from chockstone.cli.output.formatting import format_count, format_duration, format_size, format_time, printable
from chockstone.cli.output.terminal import print_json, print_line, print_table, spinner
from chockstone.cli.remote.addresses import run_route
from chockstone.cli.remote.checkpoint import list_checkpoints, parse_time
from chockstone.cli.remote.client import Json, Server


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
            f"{format_duration((now - parse_time(each['at'])).total_seconds())} ago",
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
        return f"{format_count(recovery['lost'], 'operation')} lost"
    if recovery["mismatched"]:
        return f"{recovery['mismatched']:,} of {format_count(recovery['replayed'], 'result')} differ"
    return "the same" if recovery["matched"] else "nothing to compare"


def _skipped(recovery: Json) -> list[str]:
    return [f"passed over {each['archive']}: {each['reason']}" for each in recovery["skipped"]]


_LAST: Final = ("last_checkpoint", "last_sampler_checkpoint", "last_external_checkpoint")


def list_runs(server: Server, *, now: datetime, as_json: bool) -> None:
    with spinner(f"asking {printable(server.url)}"):
        runs = list({run["training_run_id"]: run for run in server.pages("training_runs", "training_runs")}.values())
    if as_json:
        print_json({"server": server.url, "training_runs": runs})
        return
    if not runs:
        print_line(f"no runs on {printable(server.url)}")
        return
    rows = [
        (
            printable(run["training_run_id"]),
            printable(run["base_model"]),
            _trained(run),
            f"{_age(run['last_request_time'], now)} ago",
            printable(run.get("state") or ""),
            _newest(run),
        )
        for run in runs
    ]
    print_table(("RUN", "MODEL", "TRAINED", "USED", "STATE", "NEWEST CHECKPOINT"), rows, right=("USED",))


def show_run(server: Server, run_id: str, *, now: datetime, as_json: bool) -> None:
    run = server.get(run_route(run_id))
    checkpoints = list_checkpoints(server, run_id)
    if as_json:
        print_json({**run, "checkpoints": [listed.entry for listed in checkpoints]})
        return
    total = format_size(sum(listed.size_bytes for listed in checkpoints))
    facts = [*_facts(run, now), ("saved", f"{format_count(len(checkpoints), 'checkpoint')}, {total}")]
    for label, text in facts:
        print_line(f"{label:<12}{text}")
    if checkpoints:
        print_line()
        rows = [
            (printable(listed.path), format_size(listed.size_bytes), listed.age(now), listed.state(now))
            for listed in checkpoints
        ]
        alarming = {index for index, listed in enumerate(checkpoints) if listed.damage is not None}
        print_table(("PATH", "SIZE", "AGE", "STATE"), rows, right=("SIZE", "AGE"), alarming=alarming)


def _facts(run: Json, now: datetime) -> Iterator[tuple[str, str]]:
    used_at = parse_time(run["last_request_time"])
    yield "run", printable(run["training_run_id"])
    yield "model", printable(run["base_model"])
    yield "trained", _trained(run)
    yield "owner", printable(run["model_owner"])
    if state := run.get("state"):
        yield "state", printable(state)
    yield "used", f"{format_time(used_at)}, {_age(run['last_request_time'], now)} ago"
    for key, value in (run.get("user_metadata") or {}).items():
        yield "metadata", printable(f"{key}={value}")


def _trained(run: Json) -> str:
    return f"LoRA {run['lora_rank']}" if run["is_lora"] else "all weights"


def _newest(run: Json) -> str:
    newest = [run[kind] for kind in _LAST if run.get(kind)]
    if not newest:
        return ""
    return printable(max(newest, key=lambda entry: parse_time(entry["time"]))["checkpoint_id"])


def _age(text: str, now: datetime) -> str:
    return format_duration((now - parse_time(text)).total_seconds())
