"""Attempts that are killed while they save, one after the other: prints what each was told and what it then found.

A process that has imported everything forks them, so that there can be many. Each saves two files that must be of one
step, and says so once the save has returned; the next must find that step or the one after it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from chockstone.integrations.flyte import FlyteCheckpoint, FreshStart
from chockstone.integrations.flyte.layouts import LEAF, shard


def path(raw: str, attempt: int) -> str:
    uid = f"feda4e266c748463a97d-n0-{attempt}"
    return f"{raw}/{shard(uid)}/{uid}/{LEAF}"


def attempt_to_train(raw: str, attempt: int, told: Path) -> None:
    checkpoint = FlyteCheckpoint(path(raw, attempt), path(raw, attempt - 1) if attempt else None)
    step = 0
    try:
        found = checkpoint.restore()
    except FreshStart:
        found = None
    if found is not None:
        content = (found / "large").read_bytes()
        step = int((found / "step").read_text())
        assert content == str(step % 10).encode() * len(content), "two saves are mixed"
    with told.open("a", buffering=1) as file, tempfile.TemporaryDirectory() as folder:
        file.write(f"found {step}\n")
        while True:
            step += 1
            (Path(folder) / "step").write_text(str(step))
            (Path(folder) / "large").write_bytes(str(step % 10).encode() * 3_000_000)
            checkpoint.save(folder, step=step)
            file.write(f"saved {step}\n")


def main(raw: str, kills: int, seed: int) -> None:
    delays = random.Random(seed)
    told = Path(tempfile.mkdtemp()) / "told"
    told.touch()
    for attempt in range(kills + 1):
        before = len(told.read_text().splitlines())
        if (pid := os.fork()) == 0:
            try:
                attempt_to_train(raw, attempt, told)
            except BaseException as error:
                with told.open("a") as file:
                    file.write(f"failed {error!r}\n")
            os._exit(1)
        end = time.monotonic() + 60
        while len(told.read_text().splitlines()) == before and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(delays.random() * 0.4)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(told.read_text(), end="")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
