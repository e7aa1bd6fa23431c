"""Programs that tests call and that a machine may lack."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

PACKAGES: Final[Mapping[str, str]] = {  # as Debian calls them
    "bsdtar": "libarchive-tools",
    "chromium": "chromium",
    "curl": "curl",
    "tar": "tar",
    "initdb": "postgresql",
    "node": "nodejs",
    "postgres": "postgresql",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "psql": "postgresql-client",
    "setpriv": "util-linux",
    "sha256sum": "coreutils",
}


def find_program(name: str, *, also: tuple[Path, ...] = ()) -> str:
    """The path of a program, in directories ``also`` first. Without it the test is skipped, and fails in CI."""
    found = shutil.which(name, path=os.pathsep.join([*map(str, also), os.environ.get("PATH", "")]))
    if found is None:
        told = f"{name!r} is not installed; Debian has it in the package {PACKAGES[name]!r}"
        if os.environ.get("CI"):
            pytest.fail(f"{told}. With CI set, nothing is skipped.")
        pytest.skip(told)
    return found
