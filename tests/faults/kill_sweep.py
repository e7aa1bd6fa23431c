"""Kills a saving process again and again and looks at what is left. Run as a script; see test_sigkill.py.

Each round forks a child that saves numbered checkpoints as fast as it can (new names, one name that
is overwritten every time, a retention policy) and tells the parent of each one only after it was
acknowledged. The parent kills it at a random moment and then checks the store.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from chockstone.checkpoints import Archive, Checkpointer, Retention, open_store, verify_archive

WORDS = 300_000  # a few megabytes: several blocks, more than one write


def content(number: int) -> dict[str, object]:
    values = np.random.default_rng(number).integers(0, 2**63, WORDS)
    return {"model": {"a": values, "b": values[: WORDS // 3].astype(np.float32)}, "number": number}


def child(directory: Path, first: int, pipe: int) -> None:
    checkpointer = Checkpointer(directory, prefix="run", retention=Retention(keep_last=5))
    number = first
    while True:
        state = content(number)
        os.write(pipe, f"try {number}\n".encode())
        checkpointer.save(state, step=number).result()
        os.write(pipe, f"step {number}\n".encode())
        checkpointer.save(state, name="latest", overwrite=True, pinned=True).result()
        os.write(pipe, f"latest {number}\n".encode())
        number += 1


def kill_one(directory: Path, first: int, delay: float) -> list[tuple[str, int]]:
    """What the child said before it was killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child(directory, first, writer)
        finally:
            os._exit(1)
    os.close(writer)
    said = os.read(reader, 1)  # it has begun
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    while chunk := os.read(reader, 65536):
        said += chunk
    os.close(reader)
    assert os.WIFSIGNALED(status), f"the child ended by itself: {status}"
    return [(word, int(number)) for word, number in (line.split() for line in said.decode().splitlines())]


def load(directory: Path, name: str) -> int:
    """The number inside a checkpoint, after checking every digest and every value."""
    with Archive(open_store(directory).open(name)) as archive:
        verify_archive(archive)
    state = Checkpointer(directory, prefix="run").load(name=name)
    expected = content(state["number"])
    for key, array in expected["model"].items():  # type: ignore[attr-defined]
        assert np.array_equal(state["model"][key], array), f"{name}.{key} differs"
    return int(state["number"])


def main(directory: Path, rounds: int, seed: int) -> None:
    randomness = random.Random(seed)
    store = open_store(directory)
    first, newest, latest, acknowledged, left_behind = 1, 0, 0, 0, 0
    for _ in range(rounds):
        said = kill_one(directory, first, randomness.uniform(0.0, 0.08))
        tried = max(number for _, number in said)
        newest = max([newest, *(number for word, number in said if word == "step")])
        latest = max([latest, *(number for word, number in said if word == "latest")])
        acknowledged += sum(word != "try" for word, _ in said)
        names = {entry.name for entry in store.entries()}
        numbers = {load(directory, name) for name in names if name != "run/latest"}
        assert numbers <= set(range(1, tried + 1)), f"{numbers} were never tried"
        assert newest in numbers or newest == 0, f"step {newest} was acknowledged and is gone: {names}"
        overwritten = load(directory, "run/latest") if "run/latest" in names else 0
        assert overwritten in {latest, tried}, f"latest holds {overwritten}, not {latest} or {tried}"
        newest, latest = max(numbers, default=0), overwritten  # a commit may have been cut off from its answer
        left_behind += len(store.sweep())
        assert not store.sweep(), "a sweep left something"
        first = tried + 1
    print(f"{rounds} kills, {acknowledged} saves acknowledged, {left_behind} partial writes swept")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
