"""Kills an attempt at every boundary of what it writes, and looks at what the next one gets. Run as a script.

    kill_resume.py URI LIFE [SEED | both]

A life is what the attempt does until it is killed. Without a seed it is first lived to its end, to count the
boundaries, and then once until before each of them; with one it is killed a number of times at random moments.

What is stored after a boundary is what is stored before the next one, unless that is a write, half of which is done
before the kill. So a life is also ended after a boundary before a write, and after the last one; ``both`` ends one
after every boundary. Each life is a fork of this process, which itself touches neither store nor threads. Prints how
many.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import botocore.httpsession
from harness import RETRY_POLICY, state, step_of

from chockstone.checkpoints.resume import Resume
from chockstone.checkpoints.resume.attempts import places
from chockstone.checkpoints.retention.policy import Retention
from chockstone.checkpoints.stores.object_store import connect

CALLS = ("mkdir", "link", "rename", "replace", "unlink", "fsync", "pwrite", "posix_fallocate")
ROUNDS = 12
places.connect = cache(connect)  # one client for each process


class Plan:
    """Counts boundaries, and dies at one of them."""

    def __init__(self, number: int | None = None, side: str = "before") -> None:
        self.count = 0
        self.torn: list[int] = []  # boundaries before which half of it is done
        self._number = number
        self._side = side

    def around(self, real: Callable[..., Any], is_torn: Callable[..., Callable[[], object] | None]) -> Any:
        def call(*values: Any, **options: Any) -> Any:
            here = self.count
            self.count += 1
            if (tear := is_torn(*values)) is not None:
                self.torn.append(here)
            if here == self._number and self._side == "before":
                if tear is not None:
                    tear()  # half of it was done
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return real(*values, **options)
            finally:
                if here == self._number and self._side == "after":
                    os.kill(os.getpid(), signal.SIGKILL)

        return call

    def watch(self) -> None:
        for name in CALLS:
            real = getattr(os, name)
            tear = torn_write(real) if name == "pwrite" else lambda *_: None
            setattr(os, name, self.around(real, tear))
        send = botocore.httpsession.URLLib3Session.send

        def watched(session: Any, request: Any) -> Any:
            if request.method in {"GET", "HEAD"}:
                return send(session, request)
            return self.around(send, lambda *_: None)(session, request)

        botocore.httpsession.URLLib3Session.send = watched


def torn_write(real: Callable[..., int]) -> Callable[..., Callable[[], object]]:
    def tear(descriptor: int, data: memoryview, offset: int) -> Callable[[], object]:
        half = len(data) // 2 // 4096 * 4096
        return lambda: real(descriptor, data[:half], offset)

    return tear


def attempt(root: str, number: int, **options: Any) -> Resume:
    return Resume(
        root, attempt=number, retry_policy=RETRY_POLICY, **{"retention": Retention(), "forward": "off", **options}
    )


def said(pipe: int, step: int) -> None:
    os.write(pipe, f"{step}\n".encode())


def first_save(root: str, pipe: int) -> None:
    """A1 restores what A0 saved, and saves once."""
    with attempt(root, 1) as resume:
        resume.restore(state(0))
        resume.save(state(20), step=20).result()
        said(pipe, 20)


def second_save(root: str, pipe: int) -> None:
    with attempt(root, 0) as resume:
        resume.acknowledge_fresh_start()  # it looks at nothing before it saves
        resume.save(state(20), step=20).result()
        said(pipe, 20)


def restart(root: str, pipe: int) -> None:
    """A0 once more, in its own place."""
    with attempt(root, 0) as resume:
        resume.restore(state(0))
        resume.save(state(20), step=20).result()
        said(pipe, 20)


def forward(root: str, pipe: int) -> None:
    """A1 restores, forwards by reference, and dies before its first save."""
    with attempt(root, 1, forward="reference") as resume:
        resume.restore(state(0))
    said(pipe, 10)


def many_saves(root: str, pipe: int) -> None:
    """As often as there is time, with the retention that users have."""
    with attempt(root, 1, retention=Retention(keep_last=2), forward="reference") as resume:
        resume.restore(state(0))
        for step in range(20, 10_000):
            resume.save(state(step), step=step).result()
            said(pipe, step)


LIVES = {each.__name__: each for each in (first_save, second_save, restart, forward, many_saves)}


def forked(work: Callable[[int], None], *, kill_after: float | None = None) -> tuple[list[int], int]:
    """What it said, and how it ended."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work(writer)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    heard = b""
    while piece := os.read(reader, 65536):
        heard += piece
    os.close(reader)
    return [int(line) for line in heard.split()], status


def prepare(root: str) -> Callable[[int], None]:
    def work(pipe: int) -> None:
        with attempt(root, 0) as resume:
            resume.save(state(10), step=10).result()

    return work


def look(root: str, number: int) -> Callable[[int], None]:
    """Restore twice as the next attempt, once as a later one; each says its step."""

    def work(pipe: int) -> None:
        for each in (number, number, number + 1):
            target = state(0)
            with attempt(root, each) as resume:
                resume.restore(target)
            said(pipe, step_of(target))

    return work


def checked(root: str, acknowledged: list[int], tried: set[int], number: int, what: str) -> int:
    found, status = forked(look(root, number))
    assert status == 0, f"{what}: the next attempt failed"
    assert len(found) == 3 and len(set(found)) == 1, f"{what}: {found}"
    newest = max([10, *acknowledged])
    assert found[0] == newest or (found[0] in tried and found[0] > newest), f"{what}: {found}, not {newest}"
    return found[0]


def lived(name: str, root: str, plan: Plan) -> Callable[[int], None]:
    def work(pipe: int) -> None:
        plan.watch()
        LIVES[name](root, pipe)
        for number in (*(-number for number in plan.torn), plan.count):
            os.write(pipe, f"{number}\n".encode())

    return work


def ends(boundaries: int, torn: set[int], *, both: bool) -> list[tuple[int, str]]:
    """The boundaries and sides at which a life ends."""
    after = [n for n in range(boundaries) if both or n + 1 in torn or n + 1 == boundaries]
    return [*((n, "before") for n in range(boundaries)), *((n, "after") for n in after)]


def sweep(base: str, name: str, *, both: bool) -> None:
    next_attempt = 1 if name in {"second_save", "restart"} else 2
    root = f"{base}/whole/run"
    assert forked(prepare(root))[1] == 0
    heard, status = forked(lived(name, root, Plan()))
    assert status == 0, "it does not even live undisturbed"
    boundaries, torn = heard[-1], {-number for number in heard if number < 0}
    outcomes: dict[int, int] = {}
    for number, side in ends(boundaries, torn, both=both):
        root = f"{base}/{number}-{side}/run"
        assert forked(prepare(root))[1] == 0
        heard, status = forked(lived(name, root, Plan(number, side)))
        assert os.WIFSIGNALED(status), f"boundary {number} was not met: {status}"
        tried = {20} if name != "forward" else set()
        step = checked(root, heard, tried, next_attempt, f"{name} {number} {side}")
        outcomes[step] = outcomes.get(step, 0) + 1
    print(json.dumps({"boundaries": boundaries, "outcomes": outcomes}))


def at_random(base: str, name: str, seed: int) -> None:
    randomness = random.Random(seed)
    outcomes: dict[int, int] = {}
    for number in range(ROUNDS):
        root = f"{base}/{number}/run"
        assert forked(prepare(root))[1] == 0
        delay = randomness.uniform(0.0, 1.5)
        heard, status = forked(lambda pipe, root=root: LIVES[name](root, pipe), kill_after=delay)  # type: ignore[misc]
        assert os.WIFSIGNALED(status), f"it ended by itself: {status}"
        tried = {max([19, *heard]) + 1}
        step = checked(root, heard, tried, 2, f"after {delay:.3f} s")
        outcomes[step] = outcomes.get(step, 0) + 1
    print(json.dumps({"kills": ROUNDS, "outcomes": outcomes}))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    uri, life, *how = sys.argv[1:]
    if how not in ([], ["both"]):
        at_random(uri, life, int(how[0]))
    else:
        sweep(uri, life, both=bool(how))
