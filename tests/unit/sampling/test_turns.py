from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.sampling.job import Job
from chockstone.sampling.turns import SamplingTurns

PLACES, BYTES = 5, 100
RESERVE_PLACES, RESERVE_BYTES = 1, 25


def make_job(arrival: int, samples: int, row_bytes: int, prefix_bytes: int, owner: str = "ann") -> Job:
    anything: Any = None
    return Job(
        key=str(arrival),
        owner=owner,
        arrival=arrival,
        model=anything,
        adapter=anything,
        request=anything,
        sequences=tuple(range(samples)),  # type: ignore[arg-type]  # only their number matters
        scores=anything,
        tokens=anything,
        row_bytes=row_bytes,
        prefix_bytes=prefix_bytes,
        max_chunk_tokens=1,
    )


def check_all_is_free(turns: SamplingTurns) -> None:
    assert (turns._common.places, turns._common.cache_bytes) == (PLACES, BYTES)
    assert (turns._reserve.places, turns._reserve.cache_bytes) == (RESERVE_PLACES, RESERVE_BYTES)
    assert not any((turns._lines, turns._places, turns._running, turns._prefixes, turns._reserved, turns._kept))


sizes = st.tuples(st.integers(1, 12), st.integers(0, 60), st.integers(0, 40), st.sampled_from(["ann", "bob", "cyd"]))


@settings(max_examples=60, deadline=None)
@given(wishes=st.lists(sizes, max_size=12), data=st.data())
def test_everyone_has_their_turn_and_nothing_is_given_twice(
    wishes: list[tuple[int, int, int, str]], data: st.DataObject
) -> None:
    turns = SamplingTurns(places=PLACES, cache_bytes=BYTES)
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
        assert sum(count for job, count in rows if job.decodes) <= PLACES + RESERVE_PLACES
        held = sum(count * job.row_bytes for job, count in rows)
        assert held + sum(job.prefix_bytes for job in running if job.has_prefix) <= BYTES + RESERVE_BYTES

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

    check_all_is_free(turns)


def test_samples_of_a_large_request_alternate_with_those_behind_it() -> None:
    turns = SamplingTurns(places=3, cache_bytes=BYTES)
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


def begin(turns: SamplingTurns) -> list[str]:
    """Keys of the jobs that begin now; their prompts are read at once."""
    admitted, _ = turns.admit()
    for job in admitted:
        turns.add_samples(job)
    return [job.key for job in admitted]


def test_a_freed_place_goes_to_the_owner_who_has_the_fewest() -> None:
    turns = SamplingTurns(places=4, cache_bytes=BYTES)
    flood = [make_job(number, 1, 1, 0, "ann") for number in range(10)]
    for job in flood:
        turns.add(job)
    begin(turns)
    late = [make_job(10 + number, 1, 1, 0, "bob") for number in range(10)]
    for job in late:
        turns.add(job)
    assert begin(turns) == ["10"], "the first of an owner with nothing running is taken from the reserve"

    begun = []
    for job in flood[:3]:
        turns.end_sample(job)
        begun += begin(turns)

    assert begun == ["11", "4", "12"], "one place each, and then by turns"


def test_one_owner_alone_has_all_places_and_nothing_of_the_reserve() -> None:
    turns = SamplingTurns(places=4, cache_bytes=BYTES)
    for number in range(10):
        turns.add(make_job(number, 2, 1, 0))

    assert len(begin(turns)) == 4
    assert begin(turns) == []


def test_the_reserve_is_for_one_request_of_each_owner() -> None:
    turns = SamplingTurns(places=8, cache_bytes=BYTES)
    for number in range(8):
        turns.add(make_job(number, 1, 1, 0, "ann"))
    begin(turns)
    jobs = [make_job(10 + number, 1, 1, 0, owner) for number, owner in enumerate(["bob", "bob", "cyd", "dee"])]
    for job in jobs:
        turns.add(job)

    assert begin(turns) == ["10", "12"], "a quarter of eight"
    turns.end_sample(jobs[0])
    assert begin(turns) == ["13"], "dee, who had none so far"
    turns.end_sample(jobs[3])
    assert begin(turns) == ["11"], "bob, who has nothing running again"


def test_a_request_that_needs_most_of_the_cache_is_not_passed_for_ever() -> None:
    turns = SamplingTurns(places=8, cache_bytes=BYTES)
    first, large = make_job(0, 1, 60, 0, "ann"), make_job(1, 1, 90, 0, "bob")
    turns.add(first)
    begin(turns)
    turns.add(large)
    small = [make_job(2 + number, 1, 10, 0, owner) for number, owner in enumerate(["ann", "cyd", "dee", "eve"])]
    for job in small:
        turns.add(job)

    assert begin(turns) == ["3", "4"], "others who have nothing running take from the reserve only"
    assert begin(turns) == []
    turns.end_sample(first)
    assert begin(turns) == ["1", "2"]


def test_questions_of_one_owner_do_not_fill_the_cache_for_others() -> None:
    turns = SamplingTurns(places=4, cache_bytes=BYTES)
    flood = [make_job(number, 1, 0, 20, "ann") for number in range(20)]
    for job in flood:
        turns.add(job)
    assert len(begin(turns)) == 5
    turns.add(make_job(30, 1, 0, 20, "bob"))

    assert begin(turns) == ["30"]
    turns.return_prefix(flood[0])
    turns.end_sample(flood[0])
    assert begin(turns) == ["5"]
