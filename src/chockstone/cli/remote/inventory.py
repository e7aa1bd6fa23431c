"""Listing a server's checkpoints (``ls``) and showing one of them (``show``)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.formatting import format_count, format_size, format_time, printable, shorten
from chockstone.cli.output.terminal import print_json, print_line, print_stderr, print_table, spinner
from chockstone.cli.remote.addresses import parse_path
from chockstone.cli.remote.checkpoint import ListedCheckpoint, get_checkpoint, list_checkpoints
from chockstone.cli.remote.client import Json, Server
from chockstone.wire.paths import Kind, TinkerPath


def list_served(
    server: Server,
    run_id: str | None,
    kind: str | None,
    *,
    now: datetime,
    as_json: bool,
    base_model: str | None = None,
) -> None:
    with spinner(f"asking {printable(server.url)}"):
        found = [
            listed
            for listed in list_checkpoints(server, run_id)
            if kind in (None, listed.kind) and base_model in (None, listed.entry.get("base_model"))
        ]
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
            format_size(listed.size_bytes),
            listed.age(now),
            shorten(printable(" ".join(f"{key}={value}" for key, value in listed.metadata.items())), 40),
            listed.state(now),
        )
        for listed in found
    ]
    alarming = {index for index, listed in enumerate(found) if listed.damage is not None}
    print_table(("PATH", "SIZE", "AGE", "METADATA", "STATE"), rows, right=("SIZE", "AGE"), alarming=alarming)
    alarm = f", {damaged:,} damaged" if damaged else ""
    print_line(f"{format_count(len(found), 'checkpoint')}, {format_size(total_bytes)}{alarm} in {place}")


def show_served(server: Server, path: TinkerPath, *, now: datetime, as_json: bool) -> int:
    """Print it and return the exit code: that it is damaged is something found."""
    info: Json = {}
    if path.is_latest:
        info = server.post("weights_info", {"tinker_path": str(path)})
        path = parse_path(info["path"])
    listed = get_checkpoint(server, path)
    if not info and path.kind is not Kind.EXTERNAL_WEIGHTS and listed.damage is None:
        info = server.post("weights_info", {"tinker_path": str(path)})
    if as_json:
        print_json({**listed.entry, "weights": info or None})
    else:
        for label, text in (*_facts(path, listed, now), *_shape(info)):
            print_line(f"{label:<12}{text}")
    if listed.damage is not None:
        print_stderr(f"chockstone: {path} is damaged: {listed.damage}")
        return ExitCode.FAILED
    return 0


def _facts(path: TinkerPath, listed: ListedCheckpoint, now: datetime) -> Iterator[tuple[str, str]]:
    yield "path", str(path)
    yield "run", path.run_id
    yield "state", listed.state(now)
    yield "size", f"{format_size(listed.size_bytes)} ({listed.size_bytes:,} bytes)"
    yield "created", f"{format_time(listed.created_at)}, {listed.age(now)} ago"
    yield "expires", "never" if listed.expires_at is None else format_time(listed.expires_at)
    for key, value in listed.metadata.items():
        yield "metadata", printable(f"{key}={value}")


def _shape(info: Json) -> Iterator[tuple[str, str]]:
    if not info:
        return
    yield "base model", printable(str(info["base_model"]))
    trained = [part for part in ("attn", "mlp", "unembed") if info.get(f"train_{part}")]
    rank = f"LoRA of rank {info.get('lora_rank')}" if info.get("is_lora") else "all weights"
    yield "trained", f"{rank}, {', '.join(trained)}" if trained else rank
    for skipped in info.get("skipped") or ():
        yield "skipped", printable(f"{skipped['path']}: {skipped['reason']}")
