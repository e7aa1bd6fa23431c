"""F42: retention counts what is good, and only that."""

from __future__ import annotations

import pytest
from harness import FileWorld, World, state

from chockstone.checkpoints.retention.policy import Retention

KEEP_TWO = Retention(keep_last=2)


def interrupted(world: World, attempt: int) -> None:
    """An attempt that claimed its place and died in its first save."""
    world.attempt(attempt)
    if isinstance(world, FileWorld):
        partial = world.path / world.folder(attempt) / ".partial"
        partial.mkdir(exist_ok=True)
        (partial / "000001-0001-0123456789abcdef.tar").write_bytes(b"half")


def test_f42_one_good_and_five_partial_ones(world: World) -> None:
    world.attempt(0, 10)
    for attempt in range(1, 6):
        interrupted(world, attempt)

    with world.resume(6, retention=KEEP_TWO) as resume:
        resume.restore(state(0))
        assert resume.step == 10
        resume.save(state(20), step=20).result()
        assert len(world.archives(0)) == 1

        resume.save(state(30), step=30).result()
        assert world.archives(0) == []

    assert len(world.archives(6)) == 2
    assert world.restore(7)[0] == 30


@pytest.mark.parametrize("at", [0, None, -1], ids=["head", "body", "tail"])
def test_f42_one_good_and_five_damaged_ones(at: int | None, world: World) -> None:
    world.attempt(0, 10)
    world.attempt(1, 11, 12, 13, 14, 15)
    for name in world.archives(1):
        world.damage(name, "zero" if at == 0 else "flip" if at is None else "truncate", at=at)

    with world.resume(2, retention=KEEP_TWO) as resume:
        resume.restore(state(0))
        assert resume.step == 10
        resume.save(state(20), step=20).result()

        assert len(world.archives(0)) == 1, "with 20 there are two that can be read"
        resume.save(state(30), step=30).result()

    assert world.archives(0) == []
    assert len(world.archives(1)) == 5, "somebody may want to look at them"
    assert world.restore(3)[0] == 30


def test_f42_nothing_goes_before_two_stand(world: World) -> None:
    with world.resume(0, retention=Retention(keep_last=1)) as resume:
        kept = []
        for step in (1, 2, 3, 4):
            resume.save(state(step), step=step).result()
            kept.append(len(world.archives()))

    assert kept == [1, 2, 2, 2]
