"""The ``tinker`` command line, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.live import LiveServer

Tinker = Callable[..., "subprocess.CompletedProcess[str]"]


def tinker_command(server: LiveServer, home: Path) -> Tinker:
    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tinker.cli", *words],
            env={**server.env(), "HOME": str(home), **environment},
            input="",
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def said(result: subprocess.CompletedProcess[str]) -> str:
    """What it printed, once it is known to have succeeded."""
    assert result.returncode == 0, f"exit code {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stdout


def parsed(result: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(said(result))
