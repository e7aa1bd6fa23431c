"""F25 to F31: a refusal that nobody heeds buries nothing, and a forward helps or does nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from harness import DENIED, FileWorld, S3World, World, state, step_of

from chockstone.checkpoints.errors import ResumeBlocked, StoreDenied
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume import Resume, forward
from chockstone.checkpoints.resume.attempts.generations import read_head_of
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.forward import Mode
from chockstone.checkpoints.retention.policy import Retention

MODES = pytest.mark.parametrize("mode", ["reference", "copy"])
KEEP_TWO = Retention(keep_last=2)
DIES_WHILE_FORWARDING = """
import os, signal, sys, time
from chockstone.checkpoints import Resume
from chockstone.checkpoints.resume import forward
from chockstone.checkpoints.resume.attempts import write_lease as fencing
import numpy as np

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

fencing._FencedSink.commit = die
forward._copy_within_store = die
target = {"model": {"w": np.zeros(40_000), "b": np.zeros(700, np.int32)},
          "optimizer": {"moment": np.zeros(10_000, np.float32)}, "epoch": 0}
with Resume(sys.argv[1], attempt=1, forward=sys.argv[2]) as resume:
    assert resume.restore(target).step == 10
"""


def read_only(world: World, containing: str) -> None:
    """Nothing whose path has that in it can be made any more."""
    if isinstance(world, FileWorld):
        world.fail(errno.EROFS, containing, calls=("mkdir", "link"))
    else:
        assert isinstance(world, S3World)
        world.inject(DENIED, containing, methods=("PUT", "POST"))


def forwarded(resume: Resume) -> None:
    assert resume._forward is not None
    resume._forward.wait()


@dataclass
class Gate:
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def hold(self) -> None:
        self.reached.set()
        assert self.opened.wait(60)

    def wait(self) -> None:
        assert self.reached.wait(60)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A reference that has its number is not written before the gate is opened."""
    real, gate = forward.write_files, Gate()

    def slow(*values: Any, **options: Any) -> Any:
        gate.hold()
        return real(*values, **options)

    monkeypatch.setattr(forward, "write_files", slow)
    yield gate
    gate.opened.set()


@pytest.mark.parametrize("where", ["attempt-00000.ckpt", "run"], ids=["attempt", "root"])
def test_f25_a_save_after_a_refusal_nobody_heeded_is_refused(where: str, world: World) -> None:
    world.attempt(0, 10)
    before = world.archives()
    resume = world.resume(1)
    world.deny(where)
    with pytest.raises(ResumeBlocked):
        resume.restore(state(0))
    world.heal()

    for _ in range(2):
        with pytest.raises(ResumeBlocked):
            resume.save(state(1), step=1)
        with pytest.raises(ResumeBlocked):
            resume.restore(state(0))

    resume.close()
    assert world.archives() == before
    assert world.restore(2)[0] == 10


def test_f25_only_who_says_so_begins_anew(world: World) -> None:
    world.attempt(0, 10)
    with world.resume(1) as resume:
        world.deny("attempt-00000.ckpt")
        with pytest.raises(ResumeBlocked):
            resume.restore(state(0))

        resume.acknowledge_fresh_start()
        resume.save(state(1), step=1).result()

    world.heal()
    assert world.restore(2)[0] == 1


@pytest.mark.parametrize("fault", ["deny", "interrupt"])
def test_f26_whether_there_is_something_is_never_denied_when_nobody_could_look(fault: str, world: World) -> None:
    world.attempt(0, 10)
    chain = world.chain("run/attempt-00001", *world.derived([0]), attempt=1)
    getattr(world, fault)("attempt-00000.ckpt")

    raised = []
    for _ in range(2):
        with pytest.raises(ResumeBlocked) as caught:
            chain.resolve()
        raised.append(caught.value)

    assert raised[0] is raised[1]
    assert raised[0].verdict == (Verdict.DENIED if fault == "deny" else Verdict.UNREACHABLE)
    assert chain.report is not None
    assert chain.report.outcome == "blocked"


@MODES
@pytest.mark.parametrize("where", ["attempt-00000.ckpt", "attempt-00001.ckpt"], ids=["source", "dest"])
def test_f28_a_forward_that_cannot_be_written_costs_a_warning(where: str, mode: Mode, world: World) -> None:
    world.attempt(0, 10)
    read_only(world, where)

    step, resume = world.restore(1, forward=mode)

    assert step == 10
    assert resume.report is not None
    assert any(where.removesuffix(".ckpt") in warning for warning in resume.report.warnings)
    world.heal()
    assert world.restore(2)[0] == 10


def test_f28_who_could_not_claim_its_place_never_saves_over_who_could(world: World) -> None:
    world.attempt(0, 10)
    with world.resume(1) as resume:
        read_only(world, "attempt-00001.ckpt")
        resume.restore(state(0))
        world.heal()
        world.attempt(1, 20, restores=True)

        with pytest.raises(StoreDenied):
            resume.save(state(11), step=11)

    assert world.restore(2)[0] == 20


@MODES
def test_f29_a_forward_killed_midway_leaves_the_source_to_go_on_from(mode: Mode, world: World) -> None:
    world.attempt(0, 10)
    command = [sys.executable, "-c", DIES_WHILE_FORWARDING, world.root, mode]
    died = subprocess.run(command, capture_output=True, text=True, env={**os.environ}, timeout=120)
    assert died.returncode == -signal.SIGKILL, died.stderr

    step, resume = world.restore(2)

    assert step == 10
    assert world.verdicts(resume.report) == [
        ("attempt-00002", Verdict.ABSENT),
        ("attempt-00001", Verdict.PARTIAL),
        ("attempt-00000:000001-0001", Verdict.VERIFIED),
    ]


@MODES
def test_f29_a_forward_stands_for_its_source_once_it_is_whole(mode: Mode, world: World) -> None:
    world.attempt(0, 10)
    world.attempt(1, restores=True, forward=mode)

    step, resume = world.restore(2)

    assert step == 10
    assert resume.report is not None
    assert resume.report.choice is not None
    assert resume.report.choice.attempt == 1


@MODES
def test_f29_what_came_from_another_run_stays_ours_once_it_was_forwarded(mode: Mode, world: World) -> None:
    world.attempt(0, 70, root=world.uri("older"))
    with world.resume(0, forward=mode, sources=[world.uri("older")]) as first:
        target = state(0)
        first.restore(target)
        assert step_of(target) == 70

    assert world.restore(1)[0] == 70


def test_f30_a_save_that_begins_first_wins(world: World) -> None:
    world.attempt(0, 10)
    with world.resume(1) as resume:
        resume.restore(state(0))
        chain = resume._chain()
        resume.save(state(20), step=20).result()
        assert chain.found is not None
        forward.Forward(chain, chain.found, "reference")._run()

    assert world.archives(1) == [f"{world.folder(1)}/000001-0001.tar"]
    assert world.restore(2)[0] == 20


def test_f30_a_forward_that_comes_after_a_save_does_not_stand_before_it(gate: Gate, world: World) -> None:
    world.attempt(0, 10)
    with world.resume(1, forward="reference") as resume:
        resume.restore(state(0))
        gate.wait()
        resume.save(state(20), step=20).result()
        gate.opened.set()

    assert len(world.archives(1)) == 2
    assert world.restore(2)[0] == 20


def test_f31_what_is_referred_to_is_not_collected(world: World) -> None:
    world.attempt(0, 10, 20, 30)
    world.damage(world.archives(0)[-1], "flip")

    with world.resume(1, forward="reference", retention=KEEP_TWO) as resume:
        resume.restore(state(0))
        assert resume.step == 20
        forwarded(resume)
        resume.save(state(40), step=40).result()
        assert world.archives(0) == [f"{world.folder(0)}/00000{n}-0001.tar" for n in (2, 3)], "30 is evidence"
        world.damage(world.archives(1)[-1], "flip")
        assert world.restore(2)[0] == 20, "through the reference"


def test_f31_nor_what_is_about_to_be_referred_to(gate: Gate, world: World) -> None:
    world.attempt(0, 10)
    source = world.archives(0)
    with world.resume(1, forward="reference", retention=KEEP_TWO) as resume:
        resume.restore(state(0))
        gate.wait()
        for step in (20, 30, 40):
            resume.save(state(step), step=step).result()
        assert world.archives(0) == source
        gate.opened.set()
        forwarded(resume)
        assert world.archives(0) == source

        resume.save(state(50), step=50).result()

    assert world.archives(0) == []
    assert [name[-8:-4] for name in world.archives(1)] == ["0001", "0001"]


def test_f31_a_copy_is_no_second_one_to_fall_back_on(world: World) -> None:
    world.attempt(0, 10, 20)

    with world.resume(1, forward="copy", retention=KEEP_TWO) as resume:
        resume.restore(state(0))
        forwarded(resume)
        resume.save(state(30), step=30).result()

    steps = [_step(world, name) for name in world.archives()]
    assert sorted(set(steps)) == [20, 30]


def _step(world: World, name: str) -> int:
    folder, _, file = name.rpartition("/")
    head = read_head_of(AttemptPlaces().open(world.uri(folder.removesuffix(".ckpt"))), file.removesuffix(".tar"))
    return head.manifest.step or 0
