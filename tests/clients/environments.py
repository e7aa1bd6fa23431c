"""Environments of clients: each has packages of its own versions, and all others from the environment of the tests."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.live import LiveServer

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"


def ask(environment: str, script: str, server: LiveServer, home: Path) -> dict[str, Any]:
    """What the script says of a client against the server: an object of JSON, its last line."""
    directory = Path(os.environ.get("CHOCKSTONE_CLIENTS", ROOT)) / f".venv-client-{environment}"
    python = directory / "bin" / "python"
    if not python.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{directory.name} is not there: run `make clients`")
    proxies = ("http_proxy", "https_proxy", "all_proxy")
    kept = {name: value for name, value in server.env().items() if name.lower() not in proxies}
    where = {
        "SERVER": server.url,
        "KEY": server.key,
        "LOCAL_BASE_URL": f"{server.url}/v1",
        "LOCAL_API_KEY": server.key,  # inspect-ai's service "local"
        "ANTHROPIC_BASE_URL": f"{server.url}/anthropic",
        "ANTHROPIC_API_KEY": server.key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it asks GitHub
    }
    told = subprocess.run(
        [python, "-W", "ignore", SCRIPTS / script],
        env={**kept, **where},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert told.returncode == 0, f"{told.stdout[-3000:]}\n{told.stderr[-6000:]}"
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return found
