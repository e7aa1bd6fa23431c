"""Trackio in a directory of its own, asked through its own API what it has.

Trackio reads its directory when it is imported, so each test runs the tracker in a new process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_WRITE = """
import sys
from chockstone.trackers.trackio_tracker import TrackioTracker
from support.trackers import checkpoint, facts, points

tracker, first, last = TrackioTracker(), int(sys.argv[1]), int(sys.argv[2])
runs = [facts(), facts("other:train:3", metadata={"name": "<b>mine"})]
for run in runs:
    tracker.open(run)
for point in points(first, last):
    for run in runs:
        tracker.log(run, [point])
tracker.saved(runs[0], [checkpoint(last)])
tracker.shut_down()
"""

_READ = """
import json, trackio
from trackio.sqlite_storage import SQLiteStorage

print("READ" + json.dumps({
    run.name: {
        "config": run.config,
        "alerts": run.alerts(),
        "points": [(each["step"], each["loss"]) for each in SQLiteStorage.get_logs("chockstone", run.name)],
    }
    for run in trackio.Api().runs("chockstone")
}))
"""


def run_python(program: str, directory: Path, *arguments: str) -> str:
    environment = {**os.environ, "TRACKIO_DIR": str(directory), "PYTHONPATH": str(Path(__file__).parents[2])}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    environment.pop("TRACKIO_PROJECT", None)
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes_write_the_same_runs_one_after_the_other(tmp_path: Path) -> None:
    run_python(_WRITE, tmp_path, "1", "3")
    run_python(_WRITE, tmp_path, "4", "5")

    shown = json.loads(run_python(_READ, tmp_path).rpartition("READ")[2])

    assert set(shown) == {"Qwen3-8B-6f1c2d3e-0", "-b-mine-other-3"}
    for run in shown.values():
        assert sorted(run["points"]) == [[0, 1.0], [1, 2.0], [1, 3.0], [2, 4.0], [2, 5.0]]
    first = shown["Qwen3-8B-6f1c2d3e-0"]
    assert first["config"]["rank"] == 8
    assert first["config"]["learning_rate"] == 1e-4
    assert first["config"]["metadata.task"] == "sums"
    assert {alert["step"] for alert in first["alerts"]} == {3, 5}
    assert all(alert["text"].startswith("tinker://") for alert in first["alerts"])
