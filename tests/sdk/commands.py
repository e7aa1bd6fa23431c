"""The ``tinker`` command line, run as a user runs it: each command in a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.command_forks import command_forks
from support.live import LiveServer

GROUPS = ("auth", "billing", "checkpoint", "model", "run", "session", "version")
Tinker = Callable[..., "subprocess.CompletedProcess[str]"]


def tinker_command(server: LiveServer, home: Path) -> Tinker:
    forks = command_forks("tinker.cli", "tinker", *(f"tinker.cli.commands.{group}" for group in GROUPS))

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return forks.run(*words, env={**server.env(), "HOME": str(home), **environment})

    return run


def said(result: subprocess.CompletedProcess[str]) -> str:
    """What it printed, once it is known to have succeeded."""
    assert result.returncode == 0, f"exit code {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stdout


def parsed(result: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(said(result))
