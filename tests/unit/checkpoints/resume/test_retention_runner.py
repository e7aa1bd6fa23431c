"""Keeping: what stays along a chain, decided from what its archives say."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chockstone.checkpoints.format.manifest import Manifest
from chockstone.checkpoints.reading.archive import Head
from chockstone.checkpoints.resume import Resume
from chockstone.checkpoints.resume.attempts.claims import Generation
from chockstone.checkpoints.resume.attempts.generations import FORWARD
from chockstone.checkpoints.resume.attempts.places import FilePlace
from chockstone.checkpoints.resume.retention_runner import KeptGeneration, plan
from chockstone.checkpoints.retention.policy import Best, Retention

NEW, OLD = FilePlace(Path("/chain/attempt-1")), FilePlace(Path("/chain/attempt-0"))


def kept(place: FilePlace, number: int, *, kind: str = "weights", **said: Any) -> KeptGeneration:
    manifest = Manifest(kind, said.pop("step", number), datetime.now(UTC), members=(), **said)
    return KeptGeneration(place, Generation(number, 1), Head(manifest, manifest.plan(), b"", f"seal-{number}"))


def names(doomed: list[KeptGeneration]) -> list[str]:
    return [f"{each.place.path.name[-1]}/{each.generation.number}" for each in doomed]


def test_the_newest_stay_and_the_oldest_go_first() -> None:
    good = [kept(NEW, 3), kept(NEW, 2), kept(NEW, 1), kept(OLD, 9)]

    assert names(plan(good, Retention(keep_last=2))) == ["0/9", "1/1"]


def test_two_stay_whatever_is_asked_for() -> None:
    good = [kept(NEW, 3), kept(NEW, 2), kept(NEW, 1)]

    assert names(plan(good, Retention(keep_last=1))) == ["1/1"]
    assert plan(good[:2], Retention(keep_last=1)) == []


def test_without_a_number_nothing_goes() -> None:
    assert plan([kept(NEW, n) for n in range(9, 0, -1)], Retention()) == []


def test_what_a_reference_needs_stays_while_it_does() -> None:
    source = {"uri": OLD.uri, "generation": Generation(9, 1).name}
    forward = kept(NEW, 1, kind=FORWARD, metadata={"source": source})
    old = [kept(OLD, 9), kept(OLD, 8)]

    one_saved = plan([kept(NEW, 2), forward, *old], Retention(keep_last=2))
    two_saved = plan([kept(NEW, 3), kept(NEW, 2), forward, *old], Retention(keep_last=2))

    assert names(one_saved) == ["0/8"]
    assert names(two_saved) == ["1/1", "0/8", "0/9"]  # the reference before what it refers to


def test_what_was_inherited_from_stays() -> None:
    inherits = kept(NEW, 3, metadata={"inherited": [{"name": "a", "generation": Generation(1, 1).name}]})

    assert names(plan([inherits, kept(NEW, 2), kept(NEW, 1), kept(OLD, 5)], Retention(keep_last=2))) == ["0/5"]


def test_pinned_best_and_every_stay() -> None:
    good = [
        kept(NEW, 6),
        kept(NEW, 5),
        kept(NEW, 4, metrics={"loss": 0.5}),
        kept(NEW, 3, metrics={"loss": 0.1}),
        kept(NEW, 2, pinned=True),
        kept(NEW, 1, step=100),
    ]

    policy = Retention(keep_last=2, keep_every=100, keep_best=Best("loss"))

    assert names(plan(good, policy)) == ["1/4"]


def test_a_start_at_zero_leaves_what_was_saved_before(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with Resume(root) as first:
        first.restore({"step": 0})
        first.save({"step": 100}, step=100).result()

    with Resume(root, fresh_start=True) as second:
        for step in range(1, 6):
            second.save({"step": step}, step=step).result()

    assert [each.name for each in (root / "attempt-00000.ckpt").glob("*.tar")] == ["000001-0001.tar"]
    assert len(list((root / "attempt-00001.ckpt").glob("*.tar"))) == 2
