"""A rank is lost while all of them save: nothing is committed, the checkpoint before is whole, nothing is left behind,
and the others say who it was and go on, or come to an end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from nursing import Nursery, Told, nursery

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.stores.store import open_store
from support.loopback_s3 import make_bucket, s3_server, set_environment

# Where the life of a rank ends: one that joins the write of another, and the one that began it.
JOINER = ["idle", "copy", "join 1", "write 1", "write 2", "finish 1", "finished 1"]
OWNER = ["idle", "copy", "begin 1", "write 1", "write 2", "settle 1", "commit 1", "committed 1"]
DEATHS = [(kind, victim, at) for kind in ("file", "s3") for victim, ats in ((1, JOINER), (0, OWNER)) for at in ats]
QUICK = {("file", 1, at) for at in ("copy", "write 1", "finished 1")} | {("s3", 1, "write 1"), ("s3", 0, "commit 1")}
QUICK |= {("file", 0, at) for at in ("idle", "write 1", "commit 1", "committed 1")}  # the rest is for `make soak`
_prefixes = (f"test-{number}" for number in count())


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as url, pytest.MonkeyPatch.context() as monkeypatch:
        make_bucket(url, "ranks")
        set_environment(monkeypatch, url)
        yield "s3://ranks"


@pytest.fixture(scope="module")
def ranks(s3: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Begun once S3 is there, whose address is in the environment."""
    with nursery(tmp_path_factory.mktemp("ranks")) as one:
        yield one


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a fresh store of the kind that the test asks for."""
    if request.param == "file":
        return (tmp_path / "store").as_uri()
    return f"{request.getfixturevalue('s3')}/{next(_prefixes)}"


def cases() -> list[Any]:
    told = [case for case in DEATHS if case != ("s3", 1, "write 2")]  # it has one part to write
    return [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.soak]) for case in told]


def check_the_survivor(told: Told, victim: int) -> None:
    second, third = told.outcome("second"), told.outcome("third")

    assert told.returncode == 0, told.errors
    assert (second["failed"], second["kind"]) == ("second", "SaveFailed")
    assert f"rank {victim}" in second["text"]
    assert third["failed"] == "third", "one that is lost does not come back"
    assert told.outcome("close") == {"done": "close"}


@pytest.mark.parametrize(("place", "victim", "at"), cases(), indirect=["place"])
def test_a_rank_that_is_killed_takes_nothing_with_it(ranks: Nursery, place: str, victim: int, at: str) -> None:
    told = ranks.live("save_and_die", place, world_size=2, victim=victim, at=at)

    assert [each.outcome("first") for each in told] == [{"done": "first"}] * 2
    assert told[victim].returncode == -9, told[victim].errors
    check_the_survivor(told[1 - victim], victim)

    store = open_store(place)
    was_committed = at == "committed 1"  # what died then is the answer
    names = ["run/step-00000001", *(["run/step-00000002"] if was_committed else [])]
    assert [entry.name for entry in store.entries()] == names
    left = store.sweep()
    assert len(left) <= (victim == 0), "a rank that is alive clears up itself"
    assert store.sweep() == []

    step = len(names)
    told = ranks.live("go_on", place, world_size=3, step=step + 1)
    assert [each.said[0] for each in told] == [{"resumed": step, "is_whole": True}] * 3, told[0].errors
    assert [each.outcome("save") for each in told] == [{"done": "save"}] * 3
    checkpointer = Checkpointer(place, prefix="run")
    assert [checkpointer.verify(name) > 0 for name in (*names, f"run/step-{step + 1:08d}")] == [True] * (step + 1)


@pytest.mark.parametrize("place", ["file"], indirect=True)
@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_a_rank_that_never_comes_is_waited_for_no_longer_than_was_said(ranks: Nursery, place: str, victim: int) -> None:
    told = ranks.live("fall_silent", place, world_size=3, victim=victim, patience=2.0)

    assert [each.returncode for each in told] == [0, 0, 0], [each.errors for each in told]
    for rank in {0, 1, 2} - {victim}:
        second = told[rank].outcome("second")
        assert (second["failed"], second["kind"]) == ("second", "SaveFailed")
    assert [entry.name for entry in open_store(place).entries()] == ["run/step-00000001"]
    assert open_store(place).sweep() == []


@pytest.mark.parametrize("place", ["file", pytest.param("s3", marks=pytest.mark.soak)], indirect=True)
def test_nobody_trains_into_a_snapshot_that_a_slow_rank_holds_up(ranks: Nursery, place: str) -> None:
    told = ranks.live("be_slow", place, world_size=2, victim=1)

    assert [each.returncode for each in told] == [0, 0], [each.errors for each in told]
    for each in told:
        assert each.said[0] == {"took_a_buffer_in_use": False, "was_acknowledged": False}
        assert each.said[1] == {"saved": ["run/step-00000001", "run/step-00000002"]}
    for step in (1, 2):
        told = ranks.live("read", place, world_size=1, step=step)
        assert told[0].said == [{"read": step, "is_whole": True}], told[0].errors
