from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np

from chockstone.checkpoints import Checkpointer
from support.cli.store_commands import PROGRAM, flip, run, run_json


def test_export_writes_the_members_into_a_new_directory(store: Path, tmp_path: Path) -> None:
    result = run("export", store, "run-1/step-00000100", tmp_path / "all")
    some = run_json("export", store / "run-1/step-00000100.tar", tmp_path / "some", "--member", "a/*")

    assert result.exit_code == 0
    assert (tmp_path / "all/a/b.txt").read_bytes() == b"x"
    assert json.loads((tmp_path / "all/state.json").read_bytes())["epoch"] == 1
    assert some["members"] == [{"name": "a/b.txt", "size_bytes": 1}]
    assert os.listdir(tmp_path / "some") == ["a"]


def test_export_refuses_what_exists_and_leaves_nothing_of_damage(store: Path, tmp_path: Path) -> None:
    flip(store / "run-1/step-00000100.tar")

    existing = run("export", store, "run-1/step-00000000", tmp_path)
    damaged = run("export", store, "run-1/step-00000100", tmp_path / "out")

    assert (existing.exit_code, damaged.exit_code) == (2, 1)
    assert "exists already" in existing.stderr
    assert os.listdir(tmp_path) == ["store"]


def test_export_writes_one_file_for_llama_cpp(tmp_path: Path) -> None:
    from support.backends.gguf_models import make_base, save  # late: brings torch

    base = make_base(tmp_path / "base", "mistral", sliding_window=32)
    save(base, tmp_path / "store")
    words = ["export", tmp_path / "store", "one"]

    result = run_json(*words, tmp_path / "a.gguf", "--to", "gguf", "--base", base.directory, "--type", "q8_0")
    again = run(*words, tmp_path / "a.gguf", "--to", "gguf", "--base", base.directory)
    bare = run(*words, tmp_path / "b.gguf", "--to", "gguf", "--merge", "--base", base.directory, "--no-tokenizer")

    assert (result["to"], result["architecture"], result["type"]) == ("gguf", "llama", "q8_0")
    assert result["files"] == [{"name": "a.gguf", "size_bytes": (tmp_path / "a.gguf").stat().st_size, "tensors": 21}]
    assert result["notes"][0].startswith("context_length is 32")
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)
    assert bare.exit_code == 0
    assert "with the checkpoint merged in, as llama in f32: 21 tensors" in bare.stdout.splitlines()[-1]
    assert sorted(os.listdir(tmp_path)) == ["a.gguf", "b.gguf", "base", "store"]


def test_an_interrupted_export_leaves_nothing(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save({"w": np.zeros(300_000_000, dtype=np.uint8)}, name="large")
    (tmp_path / "work").mkdir()
    command = [*PROGRAM, "checkpoints", "export", str(tmp_path / "store"), "large", str(tmp_path / "work/out")]

    for _ in range(5):  # it may be done before it is interrupted
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + 60
            while not os.listdir(tmp_path / "work"):
                assert time.monotonic() < deadline
                time.sleep(0.001)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        if process.returncode != 0:
            break
        shutil.rmtree(tmp_path / "work/out")

    assert (process.returncode, out, err) == (130, b"", b"")
    assert os.listdir(tmp_path / "work") == []
