from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from chockstone.checkpoints import Best, Retention, StoredCheckpoint
from chockstone.checkpoints.format.manifest import Manifest
from chockstone.checkpoints.retention.policy import plan_retention

START = datetime(2030, 1, 1, tzinfo=UTC)


def good(step: int, **facts: object) -> StoredCheckpoint:
    created_at = START + timedelta(hours=step)
    manifest = Manifest("weights", step, created_at, (), **facts)  # type: ignore[arg-type]
    return StoredCheckpoint(f"s{step}", 100, created_at, manifest)


def damaged(step: int) -> StoredCheckpoint:
    return StoredCheckpoint(f"s{step}", 100, START + timedelta(hours=step), None, "no COMMIT")


def kept(checkpoints: list[StoredCheckpoint], policy: Retention, *, now: datetime = START) -> list[str]:
    return sorted(kept.name for kept in plan_retention(checkpoints, policy, now=now).keep)


def test_no_rule_keeps_everything() -> None:
    assert kept([good(step) for step in range(3)], Retention()) == ["s0", "s1", "s2"]


def test_keep_last() -> None:
    assert kept([good(step) for step in range(6)], Retention(keep_last=2)) == ["s4", "s5"]


def test_kinds_and_folders_do_not_compete() -> None:
    checkpoints = [
        StoredCheckpoint(name, 1, START, Manifest(kind, step, START + timedelta(hours=step), ()))
        for step, (name, kind) in enumerate(
            [("a/w", "weights"), ("a/s1", "sampler_weights"), ("a/s2", "sampler_weights"), ("b/w", "weights")]
        )
    ]

    assert kept(checkpoints, Retention(keep_last=1)) == ["a/s2", "a/w", "b/w"]


def test_keep_every_adds_to_keep_last() -> None:
    assert kept([good(step) for step in range(7)], Retention(keep_last=1, keep_every=3)) == ["s0", "s3", "s6"]


@pytest.mark.parametrize(("mode", "winner"), [("min", "s1"), ("max", "s2")])
def test_keep_best_by_metric(mode: str, winner: str) -> None:
    losses = {0: 3.0, 1: 1.0, 2: 5.0, 3: float("nan"), 4: 2.0}
    checkpoints = [good(step, metrics={"loss": loss}) for step, loss in losses.items()]

    assert kept(checkpoints, Retention(keep_best=Best("loss", mode))) == sorted([winner, "s4"])  # type: ignore[arg-type]


def test_a_checkpoint_without_the_metric_is_not_the_best() -> None:
    checkpoints = [good(0), good(1, metrics={"loss": 1.0}), good(2)]

    assert kept(checkpoints, Retention(keep_best=Best("loss"))) == ["s1", "s2"]


def test_a_metric_that_none_has_chooses_nothing() -> None:
    checkpoints = [good(0), good(1, metrics={"loss": float("nan")}), good(2, metrics={"accuracy": 1.0}), good(3)]

    plan = plan_retention(checkpoints, Retention(keep_best=Best("loss")), now=START)

    assert plan.remove == ()
    assert all("none has the metric 'loss'" in reason for each in plan.keep for reason in each.reasons[-1:])
    assert kept(checkpoints, Retention(keep_best=Best("loss"), keep_last=1)) == ["s3"], "another rule chooses"


def test_a_metric_that_only_expired_ones_have_chooses_nothing() -> None:
    checkpoints = [good(0, metrics={"loss": 1.0}, ttl_seconds=1.0), good(1), good(2)]
    later = START + timedelta(days=1)

    assert kept(checkpoints, Retention(keep_best=Best("loss")), now=later) == ["s1", "s2"]


def test_pinned_ones_stay_by_policy_and_by_their_own_word() -> None:
    checkpoints = [good(0), good(1, pinned=True), good(2), good(3)]

    assert kept(checkpoints, Retention(keep_last=1, pinned=frozenset({"s0"}))) == ["s0", "s1", "s3"]


def test_expired_ones_go_whatever_else_would_keep_them() -> None:
    checkpoints = [good(0), good(1, pinned=True), good(2, ttl_seconds=60.0), good(3), good(4)]
    policy = Retention(keep_last=9, ttl_seconds=3 * 3600 + 1)

    assert kept(checkpoints, policy, now=START + timedelta(hours=4)) == ["s1", "s3", "s4"]


def test_the_newest_good_one_is_never_removed() -> None:
    checkpoints = [good(0, ttl_seconds=1.0), damaged(1)]

    assert kept(checkpoints, Retention(ttl_seconds=1.0), now=START + timedelta(days=9)) == ["s0", "s1"]


def test_damaged_ones_are_neither_counted_nor_removed() -> None:
    checkpoints = [good(0), good(1), *(damaged(step) for step in range(2, 7))]

    plan = plan_retention(checkpoints, Retention(keep_last=2), now=START)

    assert plan.remove == ()


def test_the_plan_says_why() -> None:
    plan = plan_retention([good(step) for step in range(3)], Retention(keep_last=1), now=START)

    assert [(removal.name, removal.reason) for removal in plan.remove] == [
        ("s0", "no rule keeps it"),
        ("s1", "no rule keeps it"),
    ]
    assert plan.freed_bytes == 200
    assert plan.keep[0].reasons == ("newest good one", "among the last 1")


@pytest.mark.parametrize(
    "rules", [{"keep_last": 0}, {"keep_every": -1}, {"ttl_seconds": 0}, {"keep_best": Best("x", count=0)}]
)
def test_rules_that_make_no_sense_are_refused(rules: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not positive"):
        Retention(**rules)  # type: ignore[arg-type]
