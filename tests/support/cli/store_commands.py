"""`chockstone checkpoints` on a store, and stores to run it on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from chockstone.checkpoints import Checkpointer
from chockstone.cli.app import app

PROGRAM = [sys.executable, "-m", "chockstone.cli"]
EVIL = "\x1b[31m[bold]\u202e"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["checkpoints", *map(str, words)], catch_exceptions=False)


def run_json(*words: str | Path) -> Any:
    return json.loads(run(*words, "--json").stdout, parse_constant=pytest.fail)


def fill(root: Path, steps: int = 3) -> None:
    for index in range(steps):
        with Checkpointer(root, prefix="run-1") as checkpointer:
            weights = np.full(100, index, dtype=np.float32)
            state = {"model": {"w": weights, "b": np.zeros(3)}, "epoch": index, "lr": [0.1, 0.2], "note": EVIL}
            metrics = {"loss": 1.0 / (index + 1), "spread": float("nan")}
            checkpointer.save(
                state, step=100 * index, metrics=metrics, metadata={EVIL: [EVIL]}, files={"a/b.txt": b"x"}
            )


def flip(path: Path, *, at: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b"\0\0\x80?") if at is None else at] ^= 1  # a 1.0 of step 100's weights
    path.unlink()
    path.write_bytes(content)
