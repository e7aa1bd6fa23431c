"""Plans: the parts add up, and what is said to fit fits."""

from __future__ import annotations

from typing import Any

import pytest

from chockstone.backends.planning.plan import Planner, RunMemory
from chockstone.backends.run_spec import Recomputed

GB = 10**9
RUN = RunMemory.of(25_000_000, "adamw")  # 0.4 GB


def pass_bytes(sequences: int, tokens: int, recomputed: Recomputed) -> int:
    return sequences * tokens * (1_000_000 if recomputed == "none" else 100_000)


def planner(**changes: Any) -> Planner:
    facts = {
        "device_bytes": 20 * GB,
        "base_bytes": 10 * GB,
        "run": RUN,
        "pass_bytes": pass_bytes,
        "max_context": 1 << 17,
        "cache_bytes": 1 * GB,
        "default_tokens": 4096,
    }
    return Planner(**{**facts, **changes})


def test_a_run_has_weights_a_gradient_and_moments() -> None:
    assert (RUN.weights_bytes, RUN.gradient_bytes, RUN.moments_bytes) == (10**8, 10**8, 2 * 10**8)
    assert RunMemory.of(25_000_000, "sgd").total_bytes == 3 * 10**8


def test_the_parts_add_up() -> None:
    plan = planner().plan(context=2048, runs=2)

    assert plan.fixed_bytes == 10 * GB + 2 * RUN.total_bytes + 1 * GB
    assert plan.total_bytes == plan.fixed_bytes + plan.largest_pass.peak_bytes
    assert plan.fits


@pytest.mark.parametrize(("context", "recomputes"), [(1024, False), (4096, False), (8192, True)])
def test_layers_recompute_what_would_take_half_of_the_free_memory(context: int, recomputes: bool) -> None:
    plan = planner(default_tokens=context).plan(context=context)

    assert plan.largest_pass.recomputes is recomputes


def test_the_longest_context_fits_and_a_longer_one_does_not() -> None:
    made = planner()
    longest = made.plan(context=1024).longest_context

    assert made.plan(context=longest).fits
    assert not made.plan(context=round(longest * 1.02)).fits


def test_the_model_limits_the_context() -> None:
    assert planner(max_context=5000).plan(context=1024).longest_context == 5000


def test_so_many_runs_fit_and_no_more() -> None:
    made = planner()
    most = made.plan(context=2048).most_runs

    assert made.plan(context=2048, runs=most).fits
    assert not made.plan(context=40_000, runs=most + 1).fits


def test_micro_batches_are_halved_until_they_fit() -> None:
    plan = planner(device_bytes=round(11.5 * GB)).plan(context=256)

    assert plan.fits
    assert plan.tokens_per_micro_batch in (2048, 1024, 512)


def test_what_cannot_fit_is_said_not_to() -> None:
    plan = planner(device_bytes=8 * GB).plan(context=2048)

    assert not plan.fits
    assert (plan.longest_context, plan.most_runs) == (0, 0)
