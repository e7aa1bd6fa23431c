from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Checkpointer
from support.cli.store_commands import PROGRAM, run, run_json


def test_an_error_is_a_document_when_json_was_asked_for(store: Path) -> None:
    document = run_json("show", store, "run-1/nope")

    assert document["error"]["kind"] == "CheckpointMissing"


def test_debug_shows_the_traceback(store: Path) -> None:
    assert "Traceback" in run("show", store, "run-1/nope", "--debug").stderr


@pytest.mark.parametrize("tensors", [1, 3000])
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path, tensors: int) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"model": {f"layer.{i}": np.ones(1) for i in range(tensors)}}, name="one")
    reading, writing = os.pipe()
    os.close(reading)

    command = [*PROGRAM, "checkpoints", "show", str(tmp_path), "one"]
    process = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)

    os.close(writing)
    assert (process.returncode, process.stderr) == (141, b"")


def test_output_that_cannot_be_written_is_an_error(store: Path) -> None:
    with open("/dev/full", "wb") as full:
        command = [*PROGRAM, "checkpoints", "ls", str(store)]
        process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    assert process.returncode == 3
    assert process.stderr == "chockstone: cannot write the output: No space left on device\n"
