"""Guessed API keys: servers and API replicas report in intervals how often a key was refused, unasked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from faults.crashes import until
from hostile.network import KEYS
from support.api_replicas import LiveReplica
from support.live import LiveServer

# The program with intervals of a second instead of a minute.
_QUICK: Final = """
from chockstone.api.admission.refusals import RefusedKeys
RefusedKeys.__init__.__kwdefaults__["interval_seconds"] = 1.0
from chockstone.cli import main
main()
"""


class QuickServer(LiveServer):
    def command(self) -> list[str]:
        return quickened(super().command())


class QuickReplica(LiveReplica):
    def command(self) -> list[str]:
        return quickened(super().command())


def quickened(command: list[str]) -> list[str]:
    python, *module = command[:3]
    assert module == ["-m", "chockstone.cli"]
    return [python, "-c", _QUICK, *command[3:]]


def check_reports(server: LiveServer, guesses: int) -> None:
    with server.http("tml-guessed") as http:
        assert [http.get("training_runs").status_code for _ in range(guesses)] == [401] * guesses

    # The first one is reported at once. No request follows the last one that could make the server report it.
    until(lambda: count_reported(server) == guesses, "all guesses are reported")


def count_reported(server: LiveServer) -> int:
    return sum(map(int, re.findall(r"key refused .* count=(\d+)", server.log())))


def test_servers_and_replicas_report_refused_keys_when_the_interval_ends(
    models: dict[str, Path], tmp_path: Path
) -> None:
    key, one = f"--key=bob={KEYS['bob']}", {"tiny-qwen3": models["tiny-qwen3"]}

    with QuickServer(one, tmp_path / "engine", key, key=KEYS["bob"]) as engine:
        check_reports(engine, 10)
        with QuickReplica(engine, tmp_path / "replica", key) as replica:
            check_reports(replica, 10)
