"""Has a server verify its checkpoints (``verify``)."""

from __future__ import annotations

from collections.abc import Sequence

from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.formatting import format_count, format_states, printable
from chockstone.cli.output.terminal import print_alarm, print_json, print_line, print_stderr, spinner
from chockstone.cli.remote.addresses import route
from chockstone.cli.remote.client import LONG_SECONDS, Json, NotThere, Server
from chockstone.wire.paths import TinkerPath


def verify_served(server: Server, paths: Sequence[TinkerPath], *, place: str, as_json: bool, were_listed: bool) -> int:
    """Print each verdict at once, and return the exit code. Nothing to verify in ``place`` is a failure.

    ``were_listed``: the paths come from the server itself, so a missing checkpoint was removed meanwhile.
    """
    verdicts: list[Json] = []
    for number, path in enumerate(paths, 1):
        verdict = _ask(server, path, place=f"{number:,} of {len(paths):,}")
        if were_listed and verdict["state"] == "missing":
            continue
        verdicts.append(verdict)
        if not as_json:
            _print(verdict)
    bad = sum(verdict["state"] != "good" for verdict in verdicts)
    if as_json:
        print_json({"server": server.url, "checkpoints": verdicts, "good": len(verdicts) - bad, "bad": bad})
    elif len(verdicts) > 1:
        states = format_states(verdict["state"] for verdict in verdicts)
        print_line(f"{format_count(len(verdicts), 'checkpoint')}: {states}")
    if not verdicts:
        print_stderr(
            f"chockstone: nothing was verified: {place} has no checkpoint; `chockstone runs ls` shows your runs"
        )
    return ExitCode.FAILED if bad or not verdicts else ExitCode.OK


def _ask(server: Server, path: TinkerPath, *, place: str) -> Json:
    try:
        with spinner(f"verifying {place}: {path}"):
            answer = server.post(route(path, "verify"), seconds=LONG_SECONDS)
    except NotThere as error:
        return {"tinker_path": str(path), "state": "missing", "reason": str(error)}
    state = "good" if answer["state"] == "ready" else answer["state"]
    return {"tinker_path": str(path), "state": state, "reason": answer.get("damage")}


def _print(verdict: Json) -> None:
    if verdict["state"] == "good":
        print_line(f"{verdict['tinker_path']}: ok")
    else:
        print_alarm(f"{verdict['tinker_path']}: {verdict['state']}: {printable(verdict['reason'] or '')}")
