from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.sampling.job import Job
from chockstone.sampling.turns import Turns

PLACES, BYTES = 5, 100


def make_job(arrival: int, samples: int, row_bytes: int, prefix_bytes: int) -> Job:
    anything: Any = None
    return Job(
        key=str(arrival),
        arrival=arrival,
        model=anything,
        adapter=anything,
        request=anything,
        sequences=tuple(range(samples)),  # type: ignore[arg-type]  # only their number matters
        scores=anything,
        tokens=anything,
        row_bytes=row_bytes,
        prefix_bytes=prefix_bytes,
        longest_piece=1,
    )


sizes = st.tuples(st.integers(1, 12), st.integers(0, 60), st.integers(0, 40))


@settings(max_examples=60, deadline=None)
@given(wishes=st.lists(sizes, max_size=12), data=st.data())
def test_everyone_has_their_turn_and_nothing_is_given_twice(
    wishes: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    turns = Turns(places=PLACES, cache_bytes=BYTES)
    jobs = [make_job(arrival, *wish) for arrival, wish in enumerate(wishes)]
    coming, running, done = list(jobs), [], []
    while coming or len(done) < len(jobs):
        if coming and (not running or data.draw(st.booleans())):
            turns.add(coming.pop(0))
        admitted, widened = turns.admit()
        for job in admitted:
            running.append(job)
            turns.add_samples(job)
        assert all(job in running for job in widened)
        rows = [(job, job.granted - job.ended) for job in running]
        assert sum(count for job, count in rows if job.decodes) <= PLACES
        held = sum(count * job.row_bytes for job, count in rows)
        assert held + sum(job.prefix_bytes for job in running if job.has_prefix) <= BYTES

        going = [job for job, count in rows if count]
        assert going or coming or len(done) == len(jobs)  # nobody waits for nothing
        if not going:
            continue
        job = data.draw(st.sampled_from(going))
        if data.draw(st.integers(0, 9)) == 0:
            turns.remove(job)
            running.remove(job)
            done.append(job)
            continue
        turns.end_sample(job)
        if job.granted == len(job.sequences):
            turns.return_prefix(job)
        if job.ended == len(job.sequences):
            running.remove(job)
            done.append(job)

    assert (turns._places, turns._free_bytes) == (PLACES, BYTES)


def test_samples_of_a_large_request_alternate_with_those_behind_it() -> None:
    turns = Turns(places=3, cache_bytes=BYTES)
    large, small = make_job(1, 10, 1, 1), make_job(2, 1, 1, 1)
    turns.add(large)
    turns.admit()
    turns.add_samples(large)
    turns.admit()
    turns.add(small)
    assert (large.granted, small.granted) == (3, 0)

    turns.end_sample(large)
    admitted, _ = turns.admit()

    assert admitted == [small]
    assert (large.granted, small.granted) == (3, 1)
