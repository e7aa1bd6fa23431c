"""F38 to F43: what is hostile, newer, done twice, at odds with the clock, or unheard of."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from harness import IDENTITY, FileWorld, S3World, World, refused, state, step_of

from chockstone.checkpoints import checkpointer
from chockstone.checkpoints.errors import ResumeBlocked, UnsupportedArchive
from chockstone.checkpoints.file_archive import extract_files
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.reading.reader import verify_archive
from chockstone.checkpoints.restoring.restore import load_state
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.generations import CHAIN, FORWARD, FoundGeneration
from chockstone.checkpoints.resume.attempts.places import BucketPlace, FilePlace
from chockstone.checkpoints.resume.walk.chain import Chain
from support.hostile_archives import Document, Members, forge, other_tar
from support.hostile_corpus import Hostile, corpus

FIRST = "000001-0001.tar"


def ours(members: Members, /, **fields: Any) -> bytes:
    """A sealed archive that says it is of our chain, whatever else it says."""

    def edit(document: Document) -> None:
        document.update({"metadata": {CHAIN: {"identity": IDENTITY, "attempt": 1}}, "kind": "files", **fields})

    return forge(members, edit=edit)


def names(*wanted: str) -> bytes:
    """An archive whose manifest gives its members these names."""
    return ours([(f"m{index}", b"x") for index in range(len(wanted))], members=[{"name": n, "size": 1} for n in wanted])


def link(kind: bytes) -> bytes:
    """Its tar header says that a member is a link to something outside."""
    import tarfile

    info = tarfile.TarInfo("part-0.bin")
    info.type, info.linkname = kind, "/etc/passwd"
    return other_tar(info)


HOSTILE = {
    "parent": lambda: names("../x"),
    "parent inside": lambda: names("a/../../x"),
    "absolute": lambda: names("/tmp/x"),
    "twice": lambda: names("a", "a"),
    "other case": lambda: names("Part", "pART"),
    "hidden": lambda: names(".bashrc"),
    "10 GB": lambda: ours([("a", b"x")], members=[{"name": "a", "size": 10 * 1024**3}]),
    "a million members": lambda: ours([], members=[{"name": f"m{index}", "size": 0} for index in range(1_000_000)]),
    "symbolic link": lambda: link(b"2"),
    "hard link": lambda: link(b"1"),
    "no archive": lambda: b"\x1f\x8b" + bytes(100_000),
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_f38_a_hostile_archive_is_walked_past_and_writes_nothing(hostile: str, world: World, tmp_path: Path) -> None:
    world.save_files(world.chain("run/attempt-00000", attempt=0), 10)
    world.chain("run/attempt-00001", attempt=1).claim()
    world.write(f"{world.folder(1)}/{FIRST}", HOSTILE[hostile]())
    outside = tmp_path / "outside"
    outside.mkdir()
    chain = world.chain("run/attempt-00002", *world.derived([1, 0]), attempt=2)

    def load(found: FoundGeneration) -> int:
        inside = outside / "inside"
        inside.mkdir(exist_ok=True)
        with Archive(found.open()) as archive:
            extract_files(archive, inside)
        return found.step or 0

    assert chain.walk(load) == 10
    assert world.verdicts(chain.report)[1] == (f"attempt-00001:{FIRST[:-4]}", Verdict.CORRUPT)
    assert [path.name for path in outside.iterdir()] == ["inside"]
    assert sorted(path.name for path in (outside / "inside").iterdir()) == [f"part-{index}.bin" for index in range(4)]


@pytest.mark.soak
def test_f38_no_hostile_state_is_restored(file_world: FileWorld) -> None:
    """The whole corpus, as the newest generation of a place where nobody asks whose it is."""
    world = file_world
    world.attempt(0, 10)
    name = f"hostile.ckpt/{FIRST}"
    wrong: list[str] = []
    for each in corpus():
        world.write(name, each.build())
        chain = world.chain(
            "run/attempt-00001",
            Candidate(world.uri("hostile"), Origin.PLATFORM, may_be_foreign=True),
            *world.derived([0]),
            attempt=1,
        )
        if (what := outcome_of(chain)) != expected(each):
            wrong.append(f"{each.name}: {what}")

    assert not wrong


def expected(hostile: Hostile) -> str:
    return "blocked: incompatible" if issubclass(hostile.error, UnsupportedArchive) else "10"


def outcome_of(chain: Chain) -> str:
    def load(found: FoundGeneration) -> int:
        with Archive(found.open()) as archive:
            load_state(archive)
            verify_archive(archive)
        return found.step or 0

    try:
        return str(chain.walk(load))
    except ResumeBlocked as error:
        return f"blocked: {error.verdict}"


@pytest.mark.parametrize(
    "source",
    [
        None,
        "s3://elsewhere",
        {"uri": "", "generation": FIRST[:-4], "seal": ""},
        {"uri": "ftp://host/x", "generation": FIRST[:-4], "seal": ""},
        {"uri": "s3://bucket/x?token=1", "generation": FIRST[:-4], "seal": ""},
        {"uri": "http://[::1/x", "generation": FIRST[:-4], "seal": ""},
        {"uri": "OWN", "generation": FIRST[:-4], "seal": ""},
        {"uri": "OWN", "generation": "../../x", "seal": ""},
        {"uri": "OWN", "generation": 7, "seal": ""},
    ],
)
def test_f38_a_forward_to_nowhere_or_to_itself_is_walked_past(source: Any, world: World) -> None:
    world.attempt(0, 10)
    world.attempt(1)
    if isinstance(source, dict) and source["uri"] == "OWN":
        source = {**source, "uri": world.place(1)}
    metadata = {CHAIN: {"identity": IDENTITY, "attempt": 1}, "source": source}
    world.write(f"{world.folder(1)}/{FIRST}", ours([], kind=FORWARD, metadata=metadata))

    step, resume = world.restore()

    assert step == 10
    assert (f"attempt-00001:{FIRST[:-4]}", Verdict.CORRUPT) in world.verdicts(resume.report)


@pytest.mark.parametrize("content", [b"[" * 200_000, b"0" * 10_000, b'{"format": 1}', bytes(300_000)])
def test_f38_a_hostile_record_costs_nothing(content: bytes, world: World) -> None:
    world.attempt(0, 10)
    world.attempt(0, 20, restores=True)
    for name in world.names(f"{world.folder(0)}/claims"):
        world.write(name, content)

    assert world.restore()[0] == 20


def test_f38_a_claim_that_names_ten_thousand_places_is_no_claim(world: World) -> None:
    world.attempt(0, 10)
    name = f"{world.folder(0)}/claims/000001.json"
    claim = json.loads(world.read(name))
    world.write(name, json.dumps({**claim, "given": [f"{world.base}/{index}" for index in range(10_000)]}).encode())

    assert world.restore()[0] == 10


def test_f39_an_archive_of_a_newer_format_stops(world: World) -> None:
    world.attempt(0, 10)
    world.attempt(1)
    world.write(f"{world.folder(1)}/{FIRST}", ours([("a", b"x")], version=2))

    error = refused(world, ResumeBlocked)

    assert error.verdict == Verdict.INCOMPATIBLE
    assert "format version 2" in str(error)


@pytest.mark.parametrize("record", ["000002.json", "000002.seen.json"])
@pytest.mark.parametrize("attempt", [0, 1], ids=["in place", "next"])
def test_f39_a_record_of_a_newer_format_stops_where_it_matters(record: str, attempt: int, world: World) -> None:
    """A restart reads who holds its place; whoever looks at generations reads what was seen."""
    world.attempt(0, 10)
    world.attempt(0, restores=True)
    world.write(f"{world.folder(0)}/claims/{record}", b'{"format": 2, "anything": "else"}')

    if record == "000002.json" and attempt == 1:
        assert world.restore(attempt)[0] == 10, "whom to fence is all that it would have told"
    else:
        error = refused(world, ResumeBlocked, attempt)
        assert error.verdict == Verdict.INCOMPATIBLE
        assert "upgrade" in str(error)


def test_f40_a_second_restore_looks_at_nothing_anew(world: World) -> None:
    world.attempt(0, 10)
    with world.resume() as resume:
        first, second = state(0), state(0)
        resume.restore(first)
        world.attempt(5, 99)  # what comes later is not ours to go on from
        world.heal()
        receipt = resume.restore(second)

    assert receipt is not None
    assert (step_of(first), step_of(second), receipt.step) == (10, 10, 10)
    if isinstance(world, S3World):
        assert not world.requests("GET", containing="attempt-00000.ckpt%2F"), "decided is decided"


def test_f40_a_refusal_is_the_same_twice(world: World) -> None:
    world.attempt(0, 10)
    world.deny("attempt-00000.ckpt")
    with world.resume() as resume:
        with pytest.raises(ResumeBlocked) as first:
            resume.restore(state(0))
        world.heal()
        with pytest.raises(ResumeBlocked) as second:
            resume.restore(state(0))

    assert second.value is first.value


def test_f40_two_threads_get_one_answer(world: World) -> None:
    world.save_files(world.chain("run/attempt-00000", attempt=0), 10)
    chain = world.chain("run/attempt-00001", *world.derived([0]), attempt=1)
    together, found = threading.Barrier(2), []

    def walk() -> None:
        together.wait()
        found.append(chain.walk(lambda found: (found.name, found.seal)))

    threads = [threading.Thread(target=walk) for _ in range(2)]
    world.heal()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found[0] == found[1]
    claims = [name for name in world.names(f"{world.folder(1)}/claims") if "seen" not in name]
    assert len(claims) == 1, "one process, one claim"
    if isinstance(world, S3World):
        assert len(world.requests("GET", containing="attempt-00000.ckpt%2F")) <= 3, "a look, and two for the fence"


def test_f40_two_processes_that_start_at_once_get_one_answer(world: World) -> None:
    """Both by the root, neither with a number: one of them may find that the other is newer, and stop."""
    world.attempt(0, 10)
    steps: list[object] = []

    def start() -> None:
        try:
            steps.append(world.restore()[0])
        except Exception as error:
            steps.append(type(error).__name__)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(steps) <= {10, "Superseded"}
    assert 10 in steps


def at(world: World, moment: datetime) -> None:
    """The clock of whoever saves now."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]  # any
            return moment

    world.monkeypatch.setattr(checkpointer, "datetime", Shifted)


@pytest.mark.parametrize("days", [-1, 1])
def test_f41_clocks_that_differ_by_a_day_change_no_order(days: int, world: World) -> None:
    now = datetime.now(UTC)
    for attempt, steps in enumerate([(10, 20), (30, 40), (50,)]):
        at(world, now + timedelta(days=days * attempt))
        world.attempt(attempt, *steps)
    if isinstance(world, FileWorld):
        for age, name in enumerate(world.archives()):
            moment = now.timestamp() + days * 86_400 * age
            os.utime(world.path / name, (moment, moment))

    step, resume = world.restore()

    assert step == 50
    world.damage(world.archives(2)[0], "zero")
    world.damage(world.archives(1)[1], "zero")
    assert world.restore()[0] == 30, "by attempt and number"
    assert resume.report is not None and not resume.report.warnings


class Unheard(Exception):
    """Of no tree that anybody knows."""


@pytest.mark.parametrize("where", ["listing", "read", "open", "names"])
@pytest.mark.parametrize("error", [Unheard("?"), KeyError("ETag"), AssertionError(), RuntimeError("event loop closed")])
def test_f43_an_exception_that_nobody_knows_stops(where: str, error: Exception, world: World) -> None:
    world.attempt(0, 10)
    world.attempt(1, 20)
    world.attempt(1, 30, restores=True)
    kind = BucketPlace if world.kind == "s3" else FilePlace
    if where == "names":
        from chockstone.checkpoints.resume.attempts.places import AttemptPlaces

        world.monkeypatch.setattr(AttemptPlaces, "names", failing(error))
    else:
        real = getattr(kind, where)

        def some(place: Any, *values: Any) -> Any:
            if place.uri.endswith("attempt-00001") and not (where == "read" and "seen" not in values[0]):
                raise error
            return real(place, *values)

        world.monkeypatch.setattr(kind, where, some)

    caught = refused(world, ResumeBlocked)

    assert caught.verdict == Verdict.UNREACHABLE
    assert caught.__cause__ is error


def failing(error: Exception) -> Any:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def test_f43_one_that_the_loader_raises_stops(world: World) -> None:
    world.save_files(world.chain("run/attempt-00000", attempt=0), 10)
    world.save_files(world.chain("run/attempt-00001", attempt=1), 20)
    chain = world.chain("run/attempt-00002", *world.derived([1, 0]), attempt=2)

    with pytest.raises(ResumeBlocked) as caught:
        chain.walk(failing(Unheard("?")))

    assert caught.value.verdict == Verdict.UNREACHABLE
    assert isinstance(caught.value.__cause__, Unheard)
