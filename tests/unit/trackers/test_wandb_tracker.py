"""Weights & Biases in offline mode: its files have what ``wandb sync`` would upload."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

_WRITE = """
import sys
from pathlib import Path
from chockstone.trackers.wandb_tracker import WandbTracker
from support.trackers import checkpoint, facts, points

tracker, first, last = WandbTracker(Path(sys.argv[3])), int(sys.argv[1]), int(sys.argv[2])
runs = [facts(), facts("other:train:3")]
for run in runs:
    tracker.open(run)
    tracker.open(run)
for point in points(first, last):
    for run in runs:
        tracker.log(run, [point])
tracker.saved(runs[0], [checkpoint(last)])
tracker.shut_down()
"""

_FILE_HEADER, _RECORD_HEADER, _BLOCK, _WHOLE, _LAST = 7, 7, 32_768, 1, 4


def write(directory: Path, first: int, last: int) -> None:
    directory.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment |= {"WANDB_MODE": "offline", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", _WRITE, str(first), str(last), str(directory)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def records(file: Path) -> list[Any]:
    """The records of an offline file: a log of LevelDB behind a header of seven bytes, with checksums."""
    from wandb.proto import wandb_internal_pb2

    found, whole, at, data = [], b"", _FILE_HEADER, file.read_bytes()
    while at + _RECORD_HEADER <= len(data):
        if (left := _BLOCK - at % _BLOCK) < _RECORD_HEADER:
            at += left
            continue
        _checksum, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + _RECORD_HEADER : at + _RECORD_HEADER + length]
        at += _RECORD_HEADER + length
        if kind in (_WHOLE, _LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            found.append(record)
            whole = b""
    return found


def rows(found: list[Any]) -> list[dict[str, Any]]:
    """The logged points."""
    return [
        {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
        for record in found
        if record.HasField("history")
    ]


def test_points_settings_and_checkpoints_are_in_the_offline_files(tmp_path: Path) -> None:
    write(tmp_path / "new", 1, 3)

    files = sorted((tmp_path / "new" / "wandb").glob("offline-run-*/*.wandb"))

    by_id = {file.stem.removeprefix("run-"): records(file) for file in files}
    assert set(by_id) == {"6f1c2d3e-0000-4000-8000-000000000000-train-0", "other-train-3"}
    for found in by_id.values():
        logged = [(row["_step"], row["optimizer_step"], row["loss"], row["_timestamp"]) for row in rows(found)]
        assert logged == [(n, n // 2, float(n), 1_800_000_000.0 + n) for n in (1, 2, 3)]
    found = by_id["6f1c2d3e-0000-4000-8000-000000000000-train-0"]
    (run,) = [record.run for record in found if record.HasField("run")][:1]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.project, run.display_name) == ("chockstone", "Qwen3-8B-6f1c2d3e-0")
    assert (config["rank"], config["learning_rate"], config["metadata.task"]) == (8, 1e-4, "sums")
    summary = [item for record in found if record.HasField("summary") for item in record.summary.update]
    assert any(
        json.loads(item.value_json) == "tinker://6f1c2d3e-0000-4000-8000-000000000000:train:0/weights/step-3"
        for item in summary
    )


def test_the_next_process_continues_under_the_same_id(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    write(tmp_path, 3, 4)

    files = (tmp_path / "wandb").glob("offline-run-*/run-other-train-3.wandb")
    steps = sorted(row["_step"] for file in files for row in rows(records(file)))

    assert steps == [1, 2, 3, 4]
