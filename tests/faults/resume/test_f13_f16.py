"""F13 to F16: what was committed and is damaged now."""

from __future__ import annotations

import pytest
from harness import DAMAGES, Damage, S3World, World, refused, state

from chockstone.checkpoints.errors import ResumeExhausted
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.stores.file_source import FileSource
from chockstone.checkpoints.stores.store import open_store
from support.loopback_s3 import Fault, Kind

FLIPPED = Fault(Kind.FLIPPED_BODY)

# Each file in turn is dear on S3: the suite has one damage there, soak has all.
BOTH_WORLDS = pytest.mark.parametrize(
    ("world", "how"),
    [
        *(("file", how) for how in DAMAGES),
        *(pytest.param("s3", how, marks=() if how == "flip" else pytest.mark.soak) for how in DAMAGES),
    ],
    indirect=["world"],
)


@pytest.fixture
def stored(world: World) -> dict[str, bytes]:
    """A0 at 10; A1 at 20, and at 30 after a restart in place. Records of every kind."""
    world.attempt(0, 10)
    world.attempt(1, 20, restores=True)
    world.attempt(1, 30, restores=True)
    return {name: world.read(name) for name in world.names("run")}


def copy_of(world: World, stored: dict[str, bytes], label: str) -> None:
    for name, content in stored.items():
        world.write(f"{label}/{name}", content)


def test_f13_the_older_one_of_an_attempt_comes_before_an_older_attempt(world: World) -> None:
    world.attempt(0, 10)
    world.attempt(1, 20, 30)
    world.damage(world.archives(1)[-1], "flip")

    step, resume = world.restore()

    assert step == 20
    assert world.verdicts(resume.report)[1:] == [
        ("attempt-00001:000002-0001", Verdict.CORRUPT),
        ("attempt-00001:000001-0001", Verdict.VERIFIED),
    ]


def test_f13_the_steps_that_damage_cost_are_told(world: World) -> None:
    world.attempt(0, 10, 25)
    name = world.archives(0)[-1]
    world.damage(name, "flip", at=len(world.read(name)) - 200_000)  # its head says its step

    _, resume = world.restore()

    assert resume.report is not None
    assert resume.report.steps_lost == 15
    assert "15 steps are lost" in " ".join(resume.report.warnings)
    assert any("attempt-00000" in each.uri and "read twice" in each.reason for each in resume.report.looked)


def test_f13_steps_that_nothing_tells_any_more_are_warned_of_as_well(world: World) -> None:
    world.attempt(0, 10, 25)
    world.damage(world.archives(0)[-1], "zero")

    _, resume = world.restore()

    assert resume.report is not None
    assert resume.report.steps_lost is None
    assert "how many steps that costs is not known" in " ".join(resume.report.warnings)


@BOTH_WORLDS
def test_f14_any_file_that_is_damaged_costs_one_generation_at_most(
    how: Damage, world: World, stored: dict[str, bytes]
) -> None:
    newest = world.archives(1)[-1]
    kinds = {name.rpartition("/")[2] for name in stored}
    assert {"000001.json", "000001.seen.json", "000002.json", "000002.seen.json", "000002.fenced.json"} <= kinds

    for number, name in enumerate(stored):
        copy_of(world, stored, f"{number}")
        world.damage(f"{number}/{name}", how)
        step, resume = world.restore(root=world.uri(f"{number}/run"))

        assert step == (20 if name == newest else 30), f"{how} {name}: {resume.report}"
        assert resume.attempt == 2


PARTS = ["head", "manifest", "first member", "body", "last byte of the body", "commit", "end"]


@pytest.mark.parametrize("part", PARTS)
def test_f14_a_flip_anywhere_in_an_archive_is_noticed(part: str, world: World) -> None:
    world.attempt(0, 10, 20)
    name = world.archives(0)[-1]
    store = open_store(world.uri(world.folder(0)))
    with Archive(store.open("000002-0001")) as archive:
        layout, members = archive.layout, archive.layout.members
    offsets = {
        "head": 100,
        "manifest": layout.body_offset // 2,
        "first member": members[0].offset,
        "body": members[-1].offset + members[-1].size // 2,
        "last byte of the body": members[-1].offset + members[-1].size - 1,
        "commit": layout.commit.offset,
        "end": layout.size - 1,
    }
    world.damage(name, "flip", at=offsets[part])

    assert world.restore()[0] == 10


@BOTH_WORLDS
def test_f14_a_damaged_record_is_never_the_reason_to_start_at_zero(how: Damage, world: World) -> None:
    """The only generation is an earlier incarnation's; each record in turn is all that is wrong."""
    world.attempt(0, 10)
    world.attempt(0, restores=True)
    stored = {name: world.read(name) for name in world.names("run")}
    records = [name for name in stored if not name.endswith(".tar")]
    assert len(records) == 5, records

    for number, name in enumerate(records):
        for attempt in (0, 1):  # a restart in place, and the next attempt
            label = f"{number}-{attempt}"
            copy_of(world, stored, label)
            world.damage(f"{label}/{name}", how)
            assert world.restore(attempt, root=world.uri(f"{label}/run"))[0] == 10, f"{how} {name}"

            with world.resume(attempt, root=world.uri(f"{label}/run")) as resume:
                resume.restore(state(0))
                resume.save(state(20), step=20).result()
            assert world.restore(attempt + 1, root=world.uri(f"{label}/run"))[0] == 20, f"{how} {name}, and saved"


@pytest.mark.parametrize("how", DAMAGES)
def test_f14_a_reference_that_is_damaged_leaves_what_it_refers_to(how: Damage, world: World) -> None:
    world.attempt(0, 10)
    world.attempt(1, restores=True, forward="reference")
    world.damage(world.archives(1)[0], how)

    assert world.restore()[0] == 10


@pytest.mark.parametrize("how", DAMAGES)
def test_f14_a_reference_to_what_is_damaged_is_damaged(how: Damage, world: World) -> None:
    world.attempt(0, 10)
    world.attempt(1, restores=True, forward="reference")
    world.damage(world.archives(0)[0], how)

    error = refused(world, ResumeExhausted)

    assert ("attempt-00001:000001-0001", Verdict.CORRUPT) in world.verdicts(error.report)


def test_f14_a_claim_that_is_gone_gives_its_number_to_nobody(world: World) -> None:
    world.attempt(0, 10)
    for name in world.names(f"{world.folder(0)}/claims"):
        world.delete(name)

    world.attempt(0, 20)

    assert [name.rpartition("/")[2] for name in world.archives(0)] == ["000001-0001.tar", "000002-0002.tar"]
    assert world.restore()[0] == 20


def test_f14_records_that_tell_of_a_commit_keep_zero_away(world: World) -> None:
    world.attempt(0, 10)
    world.attempt(0, restores=True)
    world.delete(world.archives(0)[0])

    error = refused(world, ResumeExhausted)

    assert "000001-0001 was committed here, by its records, and is gone" in str(error)
    assert "000001-0001" in str(refused(world, ResumeExhausted, 0)), "also in its own place"


@pytest.mark.parametrize("how", DAMAGES)
def test_f14_a_claim_that_cannot_be_read_may_have_known_of_more(how: Damage, world: World) -> None:
    """What it was given is lost with it, so nothing proves that there was nothing."""
    world.attempt(0)
    world.damage(f"{world.folder(0)}/claims/000001.json", how)

    refused(world, ResumeExhausted)


def test_f15_damage_on_the_way_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.attempt(0, 10)
    world.attempt(1, 20)
    if isinstance(world, S3World):
        world.inject(FLIPPED, "attempt-00001.ckpt/0", methods=["GET"], times=1, after=5)
    else:
        flip_once(monkeypatch, "attempt-00001.ckpt/0")

    step, resume = world.restore()

    assert step == 20
    assert resume.report is not None and resume.report.steps_lost == 0
    assert [verdict for _, verdict in world.verdicts(resume.report)] == [Verdict.ABSENT, Verdict.VERIFIED]


def test_f15_a_head_that_is_damaged_on_the_way_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.attempt(0, 10)
    world.attempt(1, 20)
    if isinstance(world, S3World):
        world.inject(FLIPPED, "attempt-00001.ckpt/0", methods=["GET"], times=1)
    else:
        flip_once(monkeypatch, "attempt-00001.ckpt/0", first=0)

    assert world.restore()[0] == 20


def test_f15_a_record_that_is_damaged_on_the_way_is_read_again(s3_world: S3World) -> None:
    world = s3_world
    world.attempt(0, 10)
    world.attempt(0, 20, restores=True)
    world.inject(FLIPPED, "claims/000002.seen.json", methods=["GET"], times=1)
    world.inject(FLIPPED, "claims/000002.json", methods=["GET"], times=1)

    step, resume = world.restore()

    assert step == 20
    assert resume.report is not None and not resume.report.warnings


def flip_once(monkeypatch: pytest.MonkeyPatch, containing: str, *, first: int = 5) -> None:
    """The read after so many others gives one other bit."""
    real, left = FileSource.read_into, [first]

    def read_into(source: FileSource, offset: int, target: memoryview) -> None:
        real(source, offset, target)
        if containing in str(source._path):
            left[0] -= 1
            if left[0] == -1:
                target[len(target) // 2] ^= 1

    monkeypatch.setattr(FileSource, "read_into", read_into)


@pytest.mark.parametrize("how", ["truncate", "flip", "zero", "append"])
def test_f16_where_all_is_damaged_nothing_starts_at_zero(how: Damage, world: World) -> None:
    world.attempt(0, 10)
    world.attempt(1, 20, 30)
    for name in world.archives():
        world.damage(name, how)

    error = refused(world, ResumeExhausted)

    assert [verdict for _, verdict in world.verdicts(error.report)][1:] == [Verdict.CORRUPT] * 3
    assert error.report.outcome == "exhausted"
    assert len(world.archives()) == 3, "the evidence stays"


def test_f16_it_starts_at_zero_when_told_to(world: World) -> None:
    world.attempt(0, 10)
    world.damage(world.archives(0)[0], "zero")
    with world.resume() as resume:
        with pytest.raises(ResumeExhausted):
            resume.restore(state(0))
        with pytest.raises(ResumeExhausted):
            resume.save(state(1), step=1)

        resume.acknowledge_fresh_start()
        assert resume.restore(state(0)) is None
        resume.save(state(1), step=1).result()

    assert world.restore()[0] == 1
