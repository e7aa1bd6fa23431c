"""Processes that are kept for many tests: to start one takes seconds."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[3]


def environment() -> dict[str, str]:
    paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


class Pool:
    def __init__(self, size: int, directory: Path) -> None:
        rendezvous = f"file://{directory / 'rendezvous'}"
        self._members = [
            subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "member.py"), str(rank), str(size), rendezvous],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment(),
            )
            for rank in range(size)
        ]

    def run(self, job: str, *, timeout_seconds: float = 250, **values: Any) -> list[Any]:
        """What each process returned, by rank."""
        for member in self._members:
            assert member.stdin is not None
            member.stdin.write(json.dumps([job, values]).encode() + b"\n")
            member.stdin.flush()
        deadline = time.monotonic() + timeout_seconds
        answers = [json.loads(self._line(member, deadline)) for member in self._members]
        errors = [f"rank {rank}: {answer['error']}" for rank, answer in enumerate(answers) if "error" in answer]
        assert not errors, "\n".join(errors)
        return [answer["value"] for answer in answers]

    def close(self) -> None:
        for member in self._members:
            assert member.stdin is not None and member.stdout is not None
            member.stdin.close()
        for member in self._members:
            try:
                member.wait(10)
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait()
            member.stdout.close()  # type: ignore[union-attr]

    def _line(self, member: subprocess.Popen[bytes], deadline: float) -> bytes:
        assert member.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(member.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                for other in self._members:
                    other.kill()
                raise TimeoutError("a process did not answer; the pool was killed")
        line = member.stdout.readline()
        assert line, f"a process ended with {member.wait()}"
        return line
