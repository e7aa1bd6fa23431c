"""F01 to F10: which attempt is gone on from, where every one that counts can be read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import S3World, World

from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.generations import CHAIN

MANY = 100
MOST_REQUESTS = 200 + 10  # and what the winner itself takes
OLD, NEW = {CHAIN: "execution-1"}, {CHAIN: "execution-2"}


def test_f01_an_attempt_that_never_started_is_walked_past(world: World) -> None:
    world.attempt(0, 10)
    chain = world.chain("run/attempt-00002", *world.derived([1, 0]), attempt=2)

    assert chain.walk(lambda found: found.step) == 10
    assert world.verdicts(chain.report) == [
        ("attempt-00002", Verdict.ABSENT),
        ("attempt-00001", Verdict.ABSENT),
        ("attempt-00000:000001-0001", Verdict.VERIFIED),
    ]
    assert world.restore(2)[0] == 10, "a root knows which attempts there were"


def test_f04_a_previous_place_that_is_our_own_is_looked_at_once(world: World) -> None:
    world.attempt(0, 10)
    previous = Candidate(f"{world.place(1)}/", Origin.PLATFORM)
    chain = world.chain("run/attempt-00001", previous, *world.derived([0]), attempt=1)

    assert chain.walk(lambda found: found.step) == 10
    assert [name for name, _ in world.verdicts(chain.report)] == ["attempt-00001", "attempt-00000:000001-0001"]


@pytest.mark.parametrize("spelling", ["{}", "{}/", "{}//"])
def test_f04_a_previous_place_that_is_also_derived_is_looked_at_once(spelling: str, world: World) -> None:
    world.attempt(0, 10)
    previous = Candidate(spelling.format(world.place(0)), Origin.PLATFORM, 0)
    chain = world.chain("run/attempt-00001", previous, *world.derived([0]), attempt=1)

    chain.walk(lambda found: found.step)

    assert len(world.verdicts(chain.report)) == 2


def test_f05_without_a_previous_place_the_derived_ones_do(world: World) -> None:
    world.attempt(0, 10)
    world.attempt(1, 20)
    chain = world.chain("run/attempt-00002", *world.derived([0, 1]), attempt=2)

    assert chain.walk(lambda found: found.step) == 20
    assert chain.report is not None and chain.report.choice is not None
    assert (chain.report.choice.attempt, chain.report.choice.origin) == (1, Origin.DERIVED)


def claim_all(world: World, numbers: range) -> None:
    def claim(number: int) -> None:
        world.chain(f"run/attempt-{number:05d}", attempt=number).claim()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(claim, numbers))


@pytest.mark.parametrize("died", ["before they wrote anything", "after their claim"])
def test_f06_a_hundred_attempts_cost_two_requests_each_at_most(died: str, world: World) -> None:
    world.attempt(0, 10)
    if died == "after their claim":
        claim_all(world, range(1, MANY))
    world.heal()  # counts from here
    chain = world.chain(f"run/attempt-{MANY:05d}", *world.derived(range(MANY)), attempt=MANY)

    assert chain.walk(lambda found: found.step) == 10
    assert chain.report is not None
    assert len(chain.report.looked) == MANY + 1
    assert chain.report.requests <= MOST_REQUESTS
    if isinstance(world, S3World):
        assert len(world.requests()) <= MOST_REQUESTS
        assert len(world.requests("GET", containing="attempt-00000.ckpt/")) <= 6


def test_f06_the_same_by_a_root(world: World) -> None:
    world.attempt(0, 10)
    claim_all(world, range(1, MANY))
    world.heal()

    step, resume = world.restore()

    assert (step, resume.attempt) == (10, MANY)
    if isinstance(world, S3World):
        assert len(world.requests()) <= MOST_REQUESTS


def test_f06_a_line_of_places_that_each_know_only_the_one_before_is_followed_once(world: World) -> None:
    first = world.chain("line/0")
    world.save_files(first, 10)
    for number in range(1, 20):
        world.chain(f"line/{number}", Candidate(world.uri(f"line/{number - 1}"), Origin.PLATFORM)).claim()
    world.heal()
    chain = world.chain("line/20", Candidate(world.uri("line/19"), Origin.PLATFORM))

    assert chain.walk(lambda found: found.step) == 10
    if isinstance(world, S3World):
        reads = world.requests("GET", containing="claims/000001.json")
        assert len(reads) == len(set(reads)) + 19, "each claim once to be fenced and once for its lineage"


def test_f09_a_restart_in_place_goes_on_from_its_own(world: World) -> None:
    world.attempt(0, 10)
    world.attempt(1, 20, restores=True)

    step, resume = world.restore(1)

    assert (step, resume.attempt) == (20, 1)
    assert resume.report is not None and resume.report.choice is not None
    assert resume.report.choice.origin == Origin.OWN


def test_f09_a_restart_that_saved_nothing_yet_goes_on_from_the_one_before(world: World) -> None:
    world.attempt(0, 10)
    world.attempt(1, restores=True)

    assert world.restore(1)[0] == 10
    assert world.restore(1)[0] == 10, "and once more"


def test_f10_a_recovered_execution_is_found_through_the_attempt_that_knew_of_it(world: World, tmp_path: Path) -> None:
    world.save_files(world.chain("execution-1/0", identity=OLD, attempt=0), 10)
    recovered = Candidate(world.uri("execution-1/0"), Origin.PLATFORM, may_be_foreign=True)
    world.chain("execution-2/0", recovered, identity=NEW, attempt=0).claim()  # and died
    previous = Candidate(world.uri("execution-2/0"), Origin.PLATFORM, 0)
    chain = world.chain("execution-2/1", previous, identity=NEW, attempt=1)

    assert chain.walk(world.loader(tmp_path / "mine")) == 10
    assert chain.report is not None and chain.report.choice is not None
    assert chain.report.choice.origin == Origin.LINEAGE
    assert (tmp_path / "mine" / "part-0.bin").read_bytes().startswith(b"step 10")


def test_f10_the_line_goes_on_in_the_execution_that_was_recovered(world: World) -> None:
    """Its last attempt had saved nothing."""
    world.save_files(world.chain("execution-1/0", identity=OLD, attempt=0), 10)
    world.chain("execution-1/1", Candidate(world.uri("execution-1/0"), Origin.PLATFORM, 0), identity=OLD).claim()
    recovered = Candidate(world.uri("execution-1/1"), Origin.PLATFORM, may_be_foreign=True)
    chain = world.chain("execution-2/0", recovered, identity=NEW, attempt=0)

    assert chain.walk(lambda found: found.step) == 10


def test_f10_what_nobody_welcomed_stays_foreign_along_the_line(world: World) -> None:
    world.save_files(world.chain("elsewhere/0", identity=OLD, attempt=0), 10)
    stranger = Candidate(world.uri("elsewhere/0"), Origin.PLATFORM)
    world.chain("execution-2/0", stranger, identity=NEW, attempt=0).claim()
    chain = world.chain(
        "execution-2/1", Candidate(world.uri("execution-2/0"), Origin.PLATFORM, 0), identity=NEW, attempt=1
    )

    assert chain.walk(lambda found: found.step) is None
    assert ("0:000001-0001", Verdict.FOREIGN) in world.verdicts(chain.report)
