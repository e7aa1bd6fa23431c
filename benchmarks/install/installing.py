"""Installing: how many packages an install brings, what they take on the disk, and how many belong to the server."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Rows, Series, reason_of
from benchmarks.install.setup import PLAIN, PROJECT, Installed, Setup, install

EXTRAS = ("[s3]", "[torch]", "[server]", "[train]")
PLAIN_TOO = {"pydantic"}  # typer, of the command line, needs it


def measure_installing(context: Context, setup: Setup) -> Rows:
    context.describe("new environments, without pip; each row is an install of its own")
    rows = {PLAIN: _measured(setup.plain)}
    for extras in () if context.quick else EXTRAS:
        context.say(f"installing chockstone{extras}")
        try:
            rows[f"chockstone{extras}"] = _measured(install(context.directory / extras.strip("[]"), extras))
        except RuntimeError as error:
            rows[f"chockstone{extras}"] = Series(failure=reason_of(error))
    return rows


def _measured(installed: Installed) -> Series:
    packages = installed.packages()
    of_server = packages & server_packages()
    series = Series(note=", ".join(sorted(packages)) if len(packages) < 15 else "")
    series.add(
        {"packages": len(packages), "size_bytes": installed.size_bytes(), "of_server": len(of_server)},
    )
    return series


def server_packages() -> set[str]:
    """What pyproject.toml names for the extra [server] and for [torch]."""
    project: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = {re.split(r"[\[<>=;]", text)[0] for extra in ("server", "torch") for text in extras[extra]}
    return {name.lower() for name in names} - {"chockstone"} - PLAIN_TOO
