"""Publishes checkpoints of a server, sets their lifetimes, and copies them."""

from __future__ import annotations

from chockstone.cli.output.formatting import format_time
from chockstone.cli.output.terminal import print_json, print_line
from chockstone.cli.remote.addresses import route
from chockstone.cli.remote.checkpoint import get_checkpoint
from chockstone.cli.remote.client import Server
from chockstone.wire.paths import TinkerPath


def set_public(server: Server, path: TinkerPath, *, public: bool, as_json: bool) -> None:
    if public:
        server.post(route(path, "publish"))
    else:
        server.delete(route(path, "publish"))
    if as_json:
        print_json({"tinker_path": str(path), "public": public})
    else:
        print_line(f"{path} {'is readable by all users of the server' if public else 'is private'}")


def set_lifetime(server: Server, path: TinkerPath, ttl_seconds: float | None, *, as_json: bool) -> None:
    server.put(route(path, "ttl"), {"ttl_seconds": None if ttl_seconds is None else round(ttl_seconds)})
    expires_at = get_checkpoint(server, path).expires_at
    if as_json:
        print_json({"tinker_path": str(path), "expires_at": expires_at})
    else:
        print_line(f"{path} {'never expires' if expires_at is None else f'expires {format_time(expires_at)}'}")


def copy_served(
    server: Server, path: TinkerPath, *, project_id: str | None, ttl_seconds: float | None, as_json: bool
) -> None:
    body: dict[str, object] = {"source_path": str(path)}
    if project_id is not None:
        body["destination_project_id"] = project_id
    if ttl_seconds is not None:
        body["ttl_seconds"] = round(ttl_seconds)
    copy = server.post("copy_weights", body)["tinker_path"]
    if as_json:
        print_json({"source_path": str(path), "tinker_path": copy})
    else:
        print_line(copy)
