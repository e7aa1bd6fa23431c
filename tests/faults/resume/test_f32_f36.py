"""F32 to F36: zombies, doubles, ranks that see different things, and what is of another chain."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from harness import World, state, step_of

from chockstone.checkpoints.errors import ResumeError, Superseded
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume import Resume, ResumeReport, explain

RANKS = 8


def outrun(zombie: Resume) -> None:
    """Let it find nobody newer, as one does that sleeps between looking and committing."""
    zombie._chain().claim().check = lambda: None  # type: ignore[method-assign]


def begun(world: World, attempt: int, *steps: int, **options: Any) -> Resume:
    """An attempt that restores what there is, saves these steps, and goes on living."""
    resume = world.resume(attempt, **options)
    resume.restore(state(0))
    for step in steps:
        resume.save(state(step), step=step).result()
    return resume


def chosen(report: ResumeReport | None) -> tuple[str, str | None, Verdict]:
    assert report is not None
    assert report.choice is not None
    return report.choice.uri, report.choice.generation, report.choice.verdict


@pytest.mark.parametrize("outruns", [False, True], ids=["late", "in-between"])
def test_f32_a_zombie_harms_nothing_that_a_later_attempt_saved(outruns: bool, world: World) -> None:
    zombie = begun(world, 1, 100)
    second = begun(world, 2, 120)
    assert second.step == 100

    if outruns:
        outrun(zombie)
        zombie.save(state(200), step=200).result()
    else:
        with pytest.raises(Superseded):
            zombie.save(state(200), step=200).result()

    zombie.close()
    second.close()
    assert world.restore(3)[0] == 120


def test_f32_a_zombie_that_does_not_look_at_its_saves_is_told_by_the_next(world: World) -> None:
    zombie = begun(world, 1, 100)
    begun(world, 2).close()
    zombie.save(state(200), step=200)

    for _ in range(2):
        with pytest.raises(Superseded):
            zombie.save(state(300), step=300)

    zombie.close()
    assert len(world.archives(1)) == 1


def test_f32_of_two_attempts_that_start_at_once_the_later_one_counts(world: World) -> None:
    late, latest = world.resume(1), world.resume(2)
    assert late.attempt == 1  # it has looked what there is, and sleeps
    assert latest.attempt == 2
    middle = begun(world, 1, 100)

    latest.restore(state(0))
    assert latest.step == 100, "what was saved after it had looked, and before it claimed"
    with pytest.raises(Superseded):
        late.restore(state(0))
    with pytest.raises(Superseded):
        middle.save(state(150), step=150).result()

    for each in (late, latest, middle):
        each.close()


@pytest.mark.parametrize("outruns", [False, True], ids=["late", "in-between"])
def test_f33_what_a_zombie_commits_after_its_fence_is_void(outruns: bool, world: World) -> None:
    zombie = begun(world, 1, 100)
    begun(world, 2).close()
    if outruns:
        outrun(zombie)
    with suppress(Superseded):
        zombie.save(state(200), step=200).result()
    zombie.close()

    step, resume = world.restore(3)

    assert step == 100
    if outruns:
        assert ("attempt-00001:000002-0001", Verdict.SUPERSEDED) in world.verdicts(resume.report)
    assert chosen(explain(world.root)) == chosen(resume.report), "who only looks sees the same"


def test_f33_a_void_one_is_better_than_zero(world: World) -> None:
    zombie = begun(world, 1)
    begun(world, 2).close()
    outrun(zombie)
    for step in (200, 300):
        zombie.save(state(step), step=step).result()
    zombie.close()

    step, resume = world.restore(3)

    assert step == 300
    assert resume.report is not None
    assert resume.report.choice is not None
    assert resume.report.choice.verdict is Verdict.SUPERSEDED
    assert any("superseded" in warning for warning in resume.report.warnings)


def test_f33_a_fence_counts_for_attempts_that_come_later(world: World) -> None:
    first = begun(world, 1, 100)
    second = begun(world, 2)
    third = begun(world, 3, 150)

    for zombie in (first, second):
        with pytest.raises(Superseded):
            zombie.save(state(900), step=900).result()
        zombie.close()
    third.close()

    assert world.restore(4)[0] == 150


@pytest.mark.parametrize("outruns", [False, True], ids=["late", "in-between"])
def test_f34_of_two_processes_of_one_attempt_one_commits(outruns: bool, world: World) -> None:
    one, other = begun(world, 1), begun(world, 1)
    if outruns:
        outrun(one)
    with suppress(Superseded):
        one.save(state(11), step=11).result()
    other.save(state(22), step=22).result()
    one.close()
    other.close()

    step, resume = world.restore(1)

    assert step == 22
    assert world.archives(1)[-1].endswith("000001-0002.tar")
    assert len(world.archives(1)) == (2 if outruns else 1)
    assert resume.report is not None


def test_f34_two_at_once_never_both_believe_that_theirs_counts(world: World) -> None:
    saved: list[int] = []

    def live(step: int) -> None:
        resume = world.resume(1)
        with suppress(Superseded):
            resume.restore(state(0))
            resume.save(state(step), step=step).result()
            saved.append(step)
        resume.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(live, (11, 22, 33, 44)))

    assert saved, "the last to claim is superseded by nobody"
    step, _ = world.restore(2)
    assert step == saved[-1] or step not in saved, f"{saved} were acknowledged in this order"


class Together:
    """Ranks as threads of one process: what ``Ranks`` promises, without torch."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.barrier = threading.Barrier(world_size)
        self.text = ""
        self.failure: Exception | None = None
        self.fine = [True] * world_size

    def of(self, rank: int) -> Any:
        together = self

        class Rank:
            world_size = together.world_size
            leads = rank == 0

            def decide(self, work: Callable[[], str]) -> str:
                if self.leads:
                    try:
                        together.text = work()
                    except Exception as error:
                        together.failure = error
                together.barrier.wait(60)
                if together.failure is not None:
                    raise together.failure
                return together.text

            def all_agree(self, ok: bool, why: str = "") -> None:
                together.fine[rank] = ok
                together.barrier.wait(60)
                if not all(together.fine):
                    raise ResumeError(why or "another rank could not")

        return Rank()


def all_ranks(world: World, between: Callable[[int], None]) -> list[int | str]:
    """What each rank restored, or the kind of its error. ``between`` comes after the decision, in each rank."""
    together = Together(RANKS)

    def live(rank: int) -> int | str:
        resume = world.resume(1)
        resume._ranks = together.of(rank)
        follow = resume._follow
        resume._follow = lambda *values, **options: (between(rank), follow(*values, **options))[1]  # type: ignore[method-assign]
        target = state(0)
        try:
            resume.restore(target)
        except ResumeError as error:
            return type(error).__name__
        finally:
            resume.close()
        return step_of(target)

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(live, range(RANKS)))


def test_f35_ranks_restore_the_one_that_was_decided_on(world: World) -> None:
    zombie = begun(world, 0, 100)
    outrun(zombie)
    once = threading.Lock()

    def newer(_: int) -> None:
        if once.acquire(blocking=False):
            zombie.save(state(200), step=200).result()

    assert all_ranks(world, newer) == [100] * RANKS
    zombie.close()
    assert len(world.archives(0)) == 2, "there was a newer one to be seen"


@pytest.mark.parametrize("how", ["delete", "flip"])
def test_f35_one_that_cannot_fails_all(how: Any, world: World) -> None:
    world.attempt(0, 90, 100)
    once = threading.Lock()

    def harm(_: int) -> None:
        if once.acquire(blocking=False):
            world.damage(world.archives(0)[-1], how)

    assert all_ranks(world, harm) == ["ResumeError"] * RANKS


def test_f36_what_another_chain_left_in_our_path_is_walked_past(world: World) -> None:
    world.attempt(0, 10)
    world.attempt(1, 999, identity="another")

    step, resume = world.restore(2)

    assert step == 10
    assert world.verdicts(resume.report) == [
        ("attempt-00002", Verdict.ABSENT),
        ("attempt-00001:000001-0001", Verdict.FOREIGN),
        ("attempt-00000:000001-0001", Verdict.VERIFIED),
    ]
    assert all(".fenced" not in name for name in world.names(world.folder(1))), "nor is it ours to fence"


def test_f36_another_chains_reference_is_not_followed(world: World) -> None:
    world.attempt(0, 999, root=world.uri("elsewhere"), identity="another")
    world.attempt(0, restores=True, identity="another", sources=[world.uri("elsewhere")], forward="reference")
    assert len(world.archives(0)) == 1
    world.deny("elsewhere")

    step, resume = world.restore(1)

    assert step == 0, "a proven fresh start"
    assert ("attempt-00000:000001-0001", Verdict.FOREIGN) in world.verdicts(resume.report)
