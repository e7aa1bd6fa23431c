"""The report: every place that was asked is in it, and it counts requests as the store does."""

from __future__ import annotations

import json

import pytest
from harness import BUSY, IDENTITY, S3World, World, state
from typer.testing import CliRunner

from chockstone.checkpoints.resume import Resume, ResumeReport, Verdict
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.cli.app import app

WORDS = 400_000  # several requests for one archive


@pytest.fixture
def root(world: World) -> str:
    """Six attempts: 0 and 1 saved, 2 never began, 3 began and died, 4 saved, 5 began and died."""
    for attempt, step in ((0, 10), (1, 20), (3, None), (4, 40), (5, None)):
        with Resume(world.root, attempt=attempt, forward="off") as resume:
            resume.restore(state(0, words=WORDS))
            if step is not None:
                resume.save(state(step, words=WORDS), step=step).result()
    return world.root


def places_in(report: ResumeReport) -> dict[str, Verdict]:
    return {each.uri.rpartition("/")[2]: each.verdict for each in report.looked}


def chain_on(world: World, root: str) -> Chain:
    """As on Flyte: nobody lists the root, so that all six places are asked."""
    before = [Candidate(f"{root}/attempt-{number:05d}", Origin.DERIVED, number) for number in range(5, -1, -1)]
    return Chain(AttemptPlaces(), f"{root}/attempt-00006", identity=IDENTITY, attempt=6, candidates=before)


def test_every_place_that_was_asked_is_in_the_report(world: World, root: str) -> None:
    if isinstance(world, S3World):
        world.proxy.requests.clear()
    chain = chain_on(world, root)
    report = chain.resolve()

    assert report.choice is not None
    assert report.choice.step == 40
    told = places_in(report)
    assert told["attempt-00006"] == Verdict.ABSENT  # before it was claimed
    assert told["attempt-00005"] == Verdict.PARTIAL
    assert told["attempt-00004"] == Verdict.VERIFIED
    if isinstance(world, S3World):
        listed = [line for line in world.requests("GET") if "list-type" in line]
        asked = {f"attempt-{number:05d}" for number in range(7) if any(f"attempt-{number:05d}" in x for x in listed)}
        assert {name for name, verdict in told.items() if verdict is not Verdict.SETTLED} == asked
    assert set(told) == {f"attempt-{number:05d}" for number in range(7)}


def test_explain_lists_every_place_with_its_verdict(world: World, root: str) -> None:
    shown = CliRunner().invoke(app, ["resume", "explain", root, "--json"], catch_exceptions=False)

    told = {each["uri"].rpartition("/")[2]: each["verdict"] for each in json.loads(shown.stdout)["looked"]}
    assert set(told) >= {"attempt-00006", "attempt-00005", "attempt-00004"}
    assert told["attempt-00006"] == "absent"
    assert told["attempt-00001"] == "untried"
    assert told["attempt-00000"] == "settled"  # its save was removed, and attempt 5 found that
    table = CliRunner().invoke(app, ["resume", "explain", root], catch_exceptions=False).stdout
    assert all(name in table for name in told)


@pytest.fixture
def quiet(s3_world: S3World) -> S3World:
    s3_world.proxy.heal()
    return s3_world


@pytest.mark.parametrize("words", [2_000, WORDS], ids=["one request reads an archive", "several do"])
@pytest.mark.parametrize("busy", [(), ("list-type",), (".tar",), ("list-type", ".tar", "claims")])
def test_requests_are_counted_as_the_store_counts_them(quiet: S3World, busy: tuple[str, ...], words: int) -> None:
    root = quiet.root
    for attempt in range(4):
        with Resume(root, attempt=attempt, forward="off") as resume:
            resume.restore(state(0, words=words))
            resume.save(state(attempt + 1, words=words), step=attempt + 1).result()
    quiet.proxy.heal()
    for mark in busy:
        for method in ("GET", "PUT"):
            quiet.proxy.inject(BUSY, method=method, containing=mark, times=1, after=1)

    with Resume(root, attempt=4, forward="off") as resume:
        assert resume.restore(state(0, words=words)) is not None
        seen = len(quiet.proxy.requests)
        report = resume.report

    assert report is not None
    assert abs(report.requests - seen) <= 0.1 * seen, f"{report.requests} told, {seen} seen"
    assert bool(report.retries) == bool(busy)
    assert report.requests >= sum(each.requests for each in report.looked)
