from __future__ import annotations

from typing import Any

from chockstone.sampling.job import Job
from chockstone.sampling.prefill_queue import PrefillQueue


def make_job(key: str) -> Job:
    """The owner is its first letter."""
    anything: Any = None
    return Job(key, key[0], 0, anything, anything, anything, (), anything, anything, 0, 0, 1)


def make_order(*keys: str) -> tuple[PrefillQueue, dict[str, Job]]:
    order, jobs = PrefillQueue(), {key: make_job(key) for key in keys}
    for job in jobs.values():
        order.add(job)
    return order, jobs


def keys_of(order: PrefillQueue) -> list[str]:
    return [job.key for job in order.in_turn()]


def test_the_first_of_each_owner_comes_before_the_second_of_any() -> None:
    order, _ = make_order("a1", "a2", "a3", "b1", "c1", "b2")

    assert keys_of(order) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_an_owner_whose_chunk_was_taken_goes_behind_those_who_got_none() -> None:
    order, jobs = make_order("a1", "a2", "b1", "b2", "c1")

    order.take([jobs["a1"], jobs["b1"]])
    order.add(jobs["a1"])  # it has more chunks

    assert keys_of(order) == ["c1", "a2", "b2", "a1"]


def test_nothing_is_left_of_a_job_that_was_removed() -> None:
    order, jobs = make_order("a1", "b1")

    order.remove(jobs["a1"])
    order.remove(jobs["a1"])
    order.take([jobs["b1"]])

    assert not order
    assert keys_of(order) == []
