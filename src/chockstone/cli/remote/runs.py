"""Lists the runs of a server (``runs ls``) and shows one with its lineage (``runs show``)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from chockstone.cli.output.formatting import format_count, format_duration, format_size, format_time, printable
from chockstone.cli.output.short_ids import shorten_ids
from chockstone.cli.output.terminal import print_json, print_line, print_table, spinner
from chockstone.cli.remote.addresses import run_route
from chockstone.cli.remote.checkpoint import list_checkpoints, parse_time
from chockstone.cli.remote.client import Json, NotThere, Server
from chockstone.wire.paths import SCHEME

_MAX_LINEAGE: Final = 50  # runs that are asked for


def list_runs(server: Server, *, now: datetime, full_ids: bool, as_json: bool) -> None:
    with spinner(f"asking {printable(server.url)}"):
        runs = list({run["training_run_id"]: run for run in server.pages("training_runs", "training_runs")}.values())
    if as_json:
        print_json({"server": server.url, "training_runs": runs})
        return
    if not runs:
        print_line(f"no runs on {printable(server.url)}")
        return
    ids = [str(run["training_run_id"]) for run in runs]
    parents = [_run_of(run["parent"]) for run in runs if run.get("parent")]
    short = {each: each for each in (*ids, *parents)} if full_ids else shorten_ids([*ids, *parents])
    rows = [
        (
            printable(short[run["training_run_id"]]),
            printable(run["base_model"]),
            "" if run.get("steps") is None else f"{run['steps']:,}",
            _loss(run),
            f"{_age(run.get('created_at') or run['last_request_time'], now)} ago",
            printable(run.get("state") or ""),
            printable(short[_run_of(run["parent"])]) if run.get("parent") else "",
        )
        for run in runs
    ]
    columns = ("RUN", "MODEL", "STEP", "LOSS", "CREATED", "STATE", "FROM")
    print_table(columns, rows, right=("STEP", "LOSS", "CREATED"))


def show_run(server: Server, run_id: str, *, now: datetime, as_json: bool) -> None:
    run = server.get(run_route(run_id))
    checkpoints = list_checkpoints(server, run_id)
    lineage = list(_lineage(server, run))
    if as_json:
        entries = [listed.entry for listed in checkpoints]
        print_json({**run, "checkpoints": entries, "lineage": [path for path, _ in lineage]})
        return
    total = format_size(sum(listed.size_bytes for listed in checkpoints))
    facts = [*_facts(run, now), ("saved", f"{format_count(len(checkpoints), 'checkpoint')}, {total}")]
    for label, text in facts:
        print_line(f"{label:<12}{text}")
    for index, (path, remark) in enumerate(lineage):
        print_line(f"{'' if index else 'made from':<12}{printable(path)}{remark}")
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
    yield "trains", _trained(run)
    yield "owner", printable(run["model_owner"])
    if state := run.get("state"):
        yield "state", printable(state)
    if run.get("steps") is not None:
        yield "step", f"{run['steps']:,}"
    if loss := _loss(run):
        yield "last loss", f"{loss} (mean over the weighted tokens of the last forward_backward)"
    if created := run.get("created_at"):
        yield "created", f"{format_time(parse_time(created))}, {_age(created, now)} ago"
    yield "last used", f"{format_time(used_at)}, {_age(run['last_request_time'], now)} ago"
    for key, value in (run.get("user_metadata") or {}).items():
        yield "metadata", printable(f"{key}={value}")


def _lineage(server: Server, run: Json) -> Iterator[tuple[str, str]]:
    """The checkpoints that a run was made from, nearest first, and a remark on each."""
    seen = {str(run["training_run_id"])}
    parent: str | None = run.get("parent")
    while parent is not None and len(seen) <= _MAX_LINEAGE:
        run_id = _run_of(parent)
        if run_id in seen:
            yield parent, ", of a run above"
            return
        seen.add(run_id)
        try:
            above = server.get(run_route(run_id)).get("parent")
        except NotThere:
            yield parent, ", of a run that is deleted or not yours"
            return
        yield parent, ""
        parent = above


def _run_of(path: str) -> str:
    return path.removeprefix(SCHEME).partition("/")[0]


def _trained(run: Json) -> str:
    return f"LoRA {run['lora_rank']}" if run["is_lora"] else "all weights"


def _loss(run: Json) -> str:
    return "" if run.get("last_loss") is None else f"{run['last_loss']:.5g}"


def _age(text: str, now: datetime) -> str:
    return format_duration((now - parse_time(text)).total_seconds())
