from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from chockstone.checkpoints import Checkpointer
from support.cli.store_commands import run, run_json


def test_ls_shows_each_checkpoint_with_its_state(store: Path) -> None:
    with Checkpointer(store, prefix="run-1") as checkpointer:
        checkpointer.save({"w": np.ones(1)}, name="pinned", pinned=True, ttl_seconds=86_400 * 3.5)
    (store / "run-1/broken.tar").write_bytes((store / "run-1/pinned.tar").read_bytes()[:-4096])

    result = run("ls", store)

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0].split() == ["NAME", "KIND", "STEP", "SIZE", "AGE", "METRICS", "STATE"]
    assert re.match(r"run-1/broken +\? +\? +[\d.]+ kB +\d+ s +damaged: the archive has \d+ bytes and not \d+", lines[1])
    assert re.match(r"run-1/step-00000100 +weights +100 +[\d.]+ kB +\d+ s +loss=0.5 spread=nan +ok$", lines[3])
    assert re.search(r"ok, pinned, expires in 3 days$", lines[5])
    assert re.match(r"5 checkpoints, [\d.]+ kB, 1 damaged in file://", lines[6])


def test_ls_as_json_is_strict_and_complete(store: Path) -> None:
    document = run_json("ls", store, "--prefix", "run-1")

    first = document["checkpoints"][0]
    assert [entry["name"] for entry in document["checkpoints"]] == [f"run-1/step-00000{i}00" for i in range(3)]
    assert document["total_bytes"] == sum(path.stat().st_size for path in store.rglob("*.tar"))
    assert (first["state"], first["step"], first["pinned"], first["expires_at"]) == ("good", 0, False, None)
    assert first["metrics"] == {"loss": 1.0, "spread": "nan"}
    assert first["created_at"].endswith("+00:00")


def test_an_empty_store_is_not_a_mistyped_one(store: Path, tmp_path: Path) -> None:
    empty = run("ls", store, "--prefix", "run-2")
    mistyped = run("ls", tmp_path / "stoer")

    assert (empty.exit_code, mistyped.exit_code) == (0, 3)
    assert "no checkpoints in" in empty.stdout
    assert "there is no directory" in mistyped.stderr


def test_what_a_server_keeps_to_bring_runs_back_is_neither_listed_nor_collected(store: Path) -> None:
    with Checkpointer(store) as checkpointer:
        for through in range(3):
            checkpointer.save({"x": through}, name=f"s.train.0/recovery/{through}", kind="recovery").result()

    listed, collected = run_json("ls", store), run_json("gc", store, "--keep-last", "1")

    assert [entry["kind"] for entry in listed["checkpoints"]] == ["weights"] * 3
    assert {removal["name"].partition("/")[0] for removal in collected["removed"]}.isdisjoint({"s.train.0"})
    assert len(collected["removed"]) == 2
    assert len(list((store / "s.train.0" / "recovery").iterdir())) == 3
