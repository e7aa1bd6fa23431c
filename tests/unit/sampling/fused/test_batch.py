from __future__ import annotations

from torch.profiler import ProfilerActivity, profile

from chockstone.sampling.sampler import Sampler
from support.sampling.making import (
    Served,
    finish,
    request,
)


def test_requests_decode_together_and_those_that_come_later_join_them(fused: Served) -> None:
    sampler, steps = Sampler(), 0
    for number in range(8):
        sampler.add(str(number), fused.sampled, None, request(max_tokens=50), seed=number)
        sampler.step()

    outcomes = {}
    while sampler.has_work():
        outcomes.update({finished.key: finished.outcome for finished in sampler.step()})
        steps += 1

    assert len(outcomes) == 8
    assert steps < 80  # one after another would be 400


def test_a_sample_that_ends_leaves_the_others_going(fused: Served) -> None:
    sampler = Sampler()
    sampler.add("long", fused.sampled, None, request(max_tokens=100), seed=1)
    sampler.add("short", fused.sampled, None, request(max_tokens=3), seed=2)

    for _ in range(8):
        finished = sampler.step()
        if finished:
            break

    assert [one.key for one in finished] == ["short"]
    assert list(finish(sampler)) == ["long"]


def test_a_step_makes_no_views_of_weights(fused: Served) -> None:
    """They are made once for all steps with the same rows: each costs as much time as a small product."""
    sampler = Sampler()
    sampler.add("one", fused.sampled, None, request(max_tokens=100), seed=1)
    for _ in range(4):
        sampler.step()

    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        sampler.step()

    calls = {event.key: event.count for event in profiled.key_averages()}
    assert calls["aten::mm"] > 0
    assert calls.get("aten::t", 0) == 0
