"""Lives of a trainer, each a process of its own that a test may kill; the same command again goes on.

As a program it is a nursery: it has imported what takes seconds, and forks a life for every line of JSON it is given.
A life says on a line each when a step is recorded and when a save begins, so that a killer can choose its moment.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from chockstone.trainers import Completion, Problem, StepRecord, Trainer, TrainerConfig
from chockstone.trainers.reports.jsonl import SAMPLES, JsonLines, read_rows
from chockstone.trainers.reports.reports import Level
from chockstone.trainers.saves import TrainerSaver


class Evens:
    """The more even tokens, the better: every policy does differently from the first step on."""

    name = "evens"
    stop: tuple[str, ...] = ()

    def __len__(self) -> int:
        return 10

    def problem(self, index: int) -> Problem:
        return Problem(f"p{index}", f"{index}+1=")

    def reward(self, problem: Problem, completion: Completion) -> float:
        return sum(token % 2 == 0 for token in completion.tokens) / max(1, len(completion.tokens))

    def evaluation(self) -> Sequence[Problem]:
        return ()


class Nursery:
    """The test's side. Lives are started one at a time."""

    def __enter__(self) -> Nursery:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._process as process:
            process.kill()

    def live(self, home: Path, settings: Mapping[str, Any], env: Mapping[str, str]) -> Life:
        self._write(json.dumps({"home": str(home), "settings": settings, "env": dict(env)}))
        return Life(self, int(self._expect("born")))

    def read(self) -> list[str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the nursery is gone"
        return line.split()

    def _expect(self, word: str) -> str:
        first, rest = self.read()
        assert first == word
        return rest

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


class Life:
    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self._pid = pid
        self.signal = 0  # that ended it
        self.is_over = False

    def until(self, word: str, count: int = 1) -> bool:
        """Whether it has said so often that it does this; else it is over."""
        while count and not self.is_over:
            said = self._nursery.read()
            if said[0] == "died":
                self.is_over, status = True, int(said[1])
                self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                assert self.signal or status == 0, "a life ended with an error; it is on standard error"
            count -= said[0] == word
        return count == 0

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if not self.is_over:
            os.kill(self._pid, number)
            self.until("died")


def live_with_kills(
    nursery: Nursery,
    home: Path,
    settings: Mapping[str, Any],
    env: Mapping[str, str],
    *,
    chance: random.Random,
    kills: int,
) -> int:
    """One life after the other, killed at random, until training is over; how many were killed."""
    killed = 0
    while True:
        life = nursery.live(home, settings, env)
        if killed < kills:
            word, count = chance.choice([("step", chance.randint(1, 5)), ("save", chance.randint(1, 2))])
            life.until(word, count)
            time.sleep(chance.random() * 0.05)
            life.kill()
        life.until("died")
        if not life.signal:
            return killed
        killed += 1


def ledger(home: Path) -> list[dict[str, Any]]:
    return list(read_rows(home / SAMPLES))


class _Teller(JsonLines):
    """Tells on standard output what is in the files."""

    def record(self, record: StepRecord) -> None:
        super().record(record)
        _tell("step")

    def event(self, text: str, *, level: Level = "info") -> None:
        super().event(text, level=level)
        _tell("event", text)


def _tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _live(home: Path, settings: Mapping[str, Any]) -> None:
    begin = TrainerSaver.begin

    def telling(*values: Any) -> Any:
        _tell("save")
        return begin(*values)

    TrainerSaver.begin = telling  # type: ignore[method-assign]
    config = TrainerConfig(**settings)
    asyncio.run(Trainer(config, Evens(), store=home / "store", reports=[_Teller(home)]).run())


def _main() -> None:
    from transformers import AutoTokenizer  # noqa: F401  # seconds, which each life would need

    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.environ.update(asked["env"])
                _live(Path(asked["home"]), asked["settings"])
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        _tell("born", pid)
        _tell("died", os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    _main()
