"""Worker replicas of a server: lists, adds and drains them."""

from __future__ import annotations

import time
from typing import Final

from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.formatting import printable
from chockstone.cli.output.reporting import CommandFailed
from chockstone.cli.output.terminal import print_json, print_line, print_table
from chockstone.cli.remote.client import Json, Server
from chockstone.wire.sizes import format_size

_LOOK_SECONDS: Final = 0.25


class ReplicaNotStarted(CommandFailed):
    """A worker that was added ended before it was ready."""

    exit_code = ExitCode.FAILED


def list_replicas(server: Server, *, as_json: bool) -> None:
    answer = server.get("replicas")
    if as_json:
        print_json({"server": server.url, **answer})
        return
    rows = [
        (
            str(each["number"]),
            _state(each),
            str(each["runs"]),
            format_size(size) if (size := each.get("memory_bytes")) is not None else "-",
            str(each["restarts"]),
            printable(each.get("last_death") or "-"),
        )
        for each in answer["replicas"]
    ]
    right = ("REPLICA", "RUNS", "MEMORY", "RESTARTS")
    print_table(("REPLICA", "STATE", "RUNS", "MEMORY", "RESTARTS", "LAST DEATH"), rows, right=right)
    for each in answer["replicas"]:
        if trouble := each.get("trouble"):
            print_line(f"replica {each['number']} is not ready: {printable(trouble)}")


def add_replica(server: Server, *, is_waited_for: bool, as_json: bool) -> None:
    """Raises ReplicaNotStarted."""
    added = server.post("replicas")
    while is_waited_for and added["state"] != "ready":
        if trouble := added.get("trouble"):
            raise ReplicaNotStarted(
                f"replica {added['number']} is not ready: {printable(trouble)}. The server's log may say more; "
                f"`chockstone replicas drain {added['number']}` removes the replica"
            )
        time.sleep(_LOOK_SECONDS)
        added = _find(server, added["number"]) or added | {"trouble": "it was drained meanwhile"}
    if as_json:
        print_json(added)
    else:
        print_line(f"replica {added['number']} is {_state(added)}")


def drain_replica(server: Server, number: int, *, is_waited_for: bool, as_json: bool) -> None:
    drained: Json | None = server.post(f"replicas/{number}/drain")
    runs = drained["runs"] if drained is not None else 0
    while is_waited_for and drained is not None and drained["is_leaving"]:
        time.sleep(_LOOK_SECONDS)
        drained = _find(server, number)
    if as_json:
        print_json({"number": number, "runs": runs, "has_left": drained is None})
    elif drained is None:
        print_line(f"replica {number} has left; {runs} runs moved")
    elif not is_waited_for:
        print_line(f"replica {number} is being drained; {runs} runs move")
    else:
        print_line(f"replica {number} stays: somebody stopped the draining")


def undrain_replica(server: Server, number: int, *, as_json: bool) -> None:
    answer = server.post(f"replicas/{number}/undrain")
    if as_json:
        print_json(answer)
    else:
        print_line(f"replica {number} is {_state(answer)}")


def _find(server: Server, number: int) -> Json | None:
    found: list[Json] = [each for each in server.get("replicas")["replicas"] if each["number"] == number]
    return found[0] if found else None


def _state(replica: Json) -> str:
    state = str(replica["state"])
    return f"{state}, leaving" if replica["is_leaving"] else state
