"""Kills attempts of one training again and again, each of which resumes. Run as a script; see test_resume_sigkill.py.

Every attempt is a forked process: it restores, tells what it got, saves in the background with retention
and forwarding on, and tells of each save only after it was acknowledged. It is killed at any moment, while
it looks, claims, fences, forwards, saves or tidies. Some are started where the last one stood, and some
live on for a while beside their successor.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from chockstone.checkpoints import Resume, Retention
from chockstone.checkpoints.errors import Superseded
from chockstone.checkpoints.resume.forward import Mode

WORDS = 3000
MODES: list[Mode] = ["reference", "copy", "off"]
PER_RUN = 25  # attempts; then another run begins, or most of the time would go into looking at old ones


def content(step: int) -> dict[str, Any]:
    values = np.random.default_rng(step).integers(0, 2**63, WORDS)
    return {"model": {"a": values, "b": values[: WORDS // 3].astype(np.float32)}, "step": step}


def step_of(state: dict[str, Any]) -> int:
    """After checking every value against the step that it says."""
    expected = content(state["step"])
    for name, array in expected["model"].items():
        assert np.array_equal(state["model"][name], array), f"{name} is not of step {state['step']}"
    return int(state["step"])


def live(root: str, attempt: int | None, mode: Mode, pipe: int) -> None:
    def tell(word: str, step: int = 0) -> None:
        os.write(pipe, f"{word} {step}\n".encode())

    signal.alarm(120)  # nobody outlives the sweep
    tell("begun")
    state = content(0)
    resume = Resume(root, attempt=attempt, forward=mode, retention=Retention(keep_last=2))
    try:
        tell("numbered", resume.attempt or 0)
        resume.restore(state)
        step = step_of(state)
        tell("resumed", step)
        running = []
        while True:
            step += 1
            running.append((step, resume.save(content(step), step=step)))
            while len(running) > 1:
                number, handle = running.pop(0)
                handle.result()
                tell("saved", number)
    except Superseded:
        tell("superseded")
        time.sleep(60)


@dataclass
class Attempt:
    pid: int
    pipe: int
    heard: bytes = b""

    @classmethod
    def start(cls, root: str, attempt: int | None, mode: Mode) -> Attempt:
        reader, writer = os.pipe()
        if pid := os.fork():
            os.close(writer)
            started = cls(pid, reader)
            started.hear(1)
            return started
        try:
            live(root, attempt, mode, writer)
        except BaseException:
            import traceback

            traceback.print_exc()
        os._exit(1)

    def hear(self, size: int = 65536) -> bool:
        heard = os.read(self.pipe, size)
        self.heard += heard
        return bool(heard)

    def wait_until_resumed(self) -> None:
        while b"resumed" not in self.heard and b"superseded" not in self.heard:
            assert self.hear(), f"it ended by itself: {self.heard!r}"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        while self.hear():
            pass
        os.close(self.pipe)
        assert os.WIFSIGNALED(status), f"it ended by itself: {status}"

    def said(self, word: str) -> list[int]:
        """The steps, or numbers, that were told with this word so far."""
        whole = self.heard.decode().rpartition("\n")[0]
        return [int(line.split()[1]) for line in whole.splitlines() if line.split()[0] == word]


def run(root: str, rounds: int, longest: float, randomness: random.Random) -> Counter[str]:
    """One training, killed that often. Checks what each attempt said against those before it."""
    lived: list[Attempt] = []
    alive: list[Attempt] = []
    try:
        for _ in range(rounds):
            numbers = [number for each in lived for number in each.said("numbered")]
            number = max(numbers, default=None) if randomness.random() < 0.3 else None  # restarted where it stood
            lived.append(Attempt.start(root, number, randomness.choice(MODES)))
            alive.append(lived[-1])
            time.sleep(longest * randomness.random() ** 2)  # early more often than late
            lives_on = randomness.random() < 0.25  # beside the next one
            if lives_on:
                alive[-1].wait_until_resumed()
            while len(alive) > lives_on:
                alive.pop(0).kill()
    finally:
        for each in alive:
            each.kill()
    final = Attempt.start(root, None, "off")
    final.wait_until_resumed()
    final.kill()
    check(lived, final.said("resumed")[0])
    return Counter(
        {
            "kills": len(lived),
            "before the restore": sum(not each.said("resumed") for each in lived),
            "superseded": sum(bool(each.said("superseded")) for each in lived),
            "saves acknowledged": sum(len(each.said("saved")) for each in lived),
        }
    )


def check(lived: list[Attempt], last: int) -> None:
    """Whoever resumed is not behind anything that those before it were told is safe, however long they lived."""
    acknowledged = 0
    highest = 0
    for number, attempt in enumerate(lived):
        for step in attempt.said("resumed"):
            assert step >= acknowledged, f"attempt {number} resumed at {step}, and {acknowledged} was acknowledged"
            assert step <= highest, f"attempt {number} resumed at {step}, and nobody had got beyond {highest}"
            highest = max(highest, step)
        saved = attempt.said("saved")
        assert saved == sorted(set(saved)), f"attempt {number} saved {saved}"
        acknowledged = max([acknowledged, *saved])
        highest = max([highest, *(step + 2 for step in (*attempt.said("resumed"), *saved))])  # two may be under way
    assert acknowledged <= last <= highest, f"the last one got {last}, of {acknowledged} and at most {highest}"


def main(root: str, rounds: int, longest: float, seed: int) -> None:
    if root.startswith("s3:"):
        import_module(
            "chockstone.checkpoints.stores.s3_bucket"
        )  # so that no child has to; used here, it would not fork well
    randomness = random.Random(seed)
    total: Counter[str] = Counter()
    for number, first in enumerate(range(0, rounds, PER_RUN)):
        total += run(f"{root}/run-{number}", min(PER_RUN, rounds - first), longest, randomness)
    print(", ".join(f"{count} {what}" for what, count in total.items()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
