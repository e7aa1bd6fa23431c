from __future__ import annotations

import subprocess

import chockstone
from support.cli.store_commands import PROGRAM


def test_the_program_tells_its_version() -> None:
    result = subprocess.run([*PROGRAM, "--version"], capture_output=True, text=True, check=True, timeout=60)

    assert result.stdout == f"chockstone {chockstone.__version__}\n"
