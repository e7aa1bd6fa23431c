"""`make demo` does what it says, and leaves nothing behind, not even when it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
DEMO = [sys.executable, "-u", str(EXAMPLES / "train_and_sample.py")]
CRASHES = [sys.executable, "-u", str(EXAMPLES / "crash_exact.py")]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(home), "COLUMNS": "120"}


def is_used(directory: Path) -> bool:
    """Whether a process that was started with a path below it still runs."""
    lines = [_command_line(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return any(str(directory).encode() in line for line in lines)


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


@pytest.mark.soak  # `make demo` runs it, and fails if a bit differs
def test_the_demo_trains_is_killed_goes_on_and_samples(tmp_path: Path) -> None:
    done = subprocess.run(DEMO, capture_output=True, text=True, env=environment(tmp_path))

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("same bits") == 5
    assert "trained    'Once it was returned, it always loads.'" in done.stdout
    assert "▁▁▁" in done.stdout
    assert "both runs are bit-identical, before the kill and after" in done.stdout
    assert "weights/1 weights/3 weights/5\n" in done.stdout
    assert "deleted checkpoints left the lists and the disk" in done.stdout
    assert list(tmp_path.glob("chockstone-demo-*")) == []
    assert not is_used(tmp_path)


@pytest.mark.soak  # `make demo` runs it, and fails if a bit differs
def test_the_script_whose_server_is_killed_never_notices(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "picture.svg"

    done = subprocess.run([*CRASHES, f"--svg={picture}"], capture_output=True, text=True, env=environment(tmp_path))

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("kill -9") == 6
    assert "48 of 48 losses have the same bits" in done.stdout
    assert "the same bits, 0 differ" in done.stdout
    labels = [element.text for element in ElementTree.parse(picture).iter() if element.tag.endswith(("title", "text"))]
    assert [labels.count(what) for what in ("worker", "server", "both", "both, twice")] == [2, 1, 2, 1]
    assert {"Server killed 7 times: the same bits", "48 of 48"} <= set(labels)
    assert list(tmp_path.glob("chockstone-demo-*")) == []
    assert not is_used(tmp_path)


@pytest.mark.parametrize(
    ("number", "after", "code"),
    [(signal.SIGTERM, "$ chockstone model make", 143), (signal.SIGINT, "$ chockstone serve", 130)],
)
def test_an_interrupted_demo_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, after: str, code: int
) -> None:
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True, env=environment(tmp_path)) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith(after):
                break
        time.sleep(0.5)  # into whatever comes next
        demo.send_signal(number)
        demo.stdout.read()

        assert demo.wait() == code

    assert list(tmp_path.glob("chockstone-demo-*")) == []
    deadline = time.monotonic() + 10
    while is_used(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_used(tmp_path)
