"""Settled attempts: shut and empty, so that those after them need not ask; and what happens if that is wrong."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import LocalResourceError, ResumeBlocked, ResumeExhausted
from chockstone.checkpoints.reading.archive import read_head
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.claims import SETTLED, SettledAttempts
from chockstone.checkpoints.resume.attempts.generations import FORWARD, FoundGeneration
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.forward import Forward
from chockstone.checkpoints.resume.retention_runner import RetentionRunner
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.checkpoints.retention.policy import Retention
from chockstone.checkpoints.stores.file_source import open_file
from chockstone.checkpoints.stores.posix import local_errors

IDENTITY = {"run": "r"}


def chain_of(folder: Path, attempt: int) -> Chain:
    """Attempt ``attempt``, which knows those before it by their numbers alone, as on Flyte."""
    before = [Candidate(f"{folder}/a{number}", Origin.DERIVED, number) for number in reversed(range(attempt))]
    return Chain(AttemptPlaces(), f"{folder}/a{attempt}", identity=IDENTITY, attempt=attempt, candidates=before)


def save(chain: Chain, step: int) -> None:
    with Checkpointer(chain.store) as checkpointer:
        state = {"w": np.full(8, float(step))}
        checkpointer.save(state, name=chain.begin().name, step=step, metadata=chain.metadata).result()
    RetentionRunner(chain, Retention(keep_last=2)).tidy()


def run(folder: Path, attempts: int) -> None:
    """Each goes on from the one before and saves twice, so that of those before it nothing is left."""
    for attempt in range(attempts):
        chain = chain_of(folder, attempt)
        chain.walk(lambda found: found)
        save(chain, 10 * attempt + 1)
        save(chain, 10 * attempt + 2)


def is_reference(path: Path) -> bool:
    source = open_file(path)
    try:
        return read_head(source).manifest.kind == FORWARD
    finally:
        source.close()


def asked(chain: Chain) -> list[str]:
    assert chain.report is not None
    return [each.uri.rpartition("/")[2] for each in chain.report.looked]


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Places that were listed."""
    found: list[str] = []
    real = Attempt.inspect.__func__  # type: ignore[attr-defined]

    def inspect(cls: type[Attempt], place: object, flyte_native: object = None) -> Attempt:
        found.append(place.uri.rpartition("/")[2])  # type: ignore[attr-defined]
        return real(cls, place, flyte_native)  # type: ignore[no-any-return]

    monkeypatch.setattr(Attempt, "inspect", classmethod(inspect))
    return found


def test_settled_attempts_are_not_asked_again(tmp_path: Path, looked_at: list[str]) -> None:
    run(tmp_path, 9)
    looked_at.clear()

    chain = chain_of(tmp_path, 9)
    chain.walk(lambda found: found)

    assert chain.found is not None
    assert chain.found.step == 82
    assert set(looked_at) == {"a9", "a8", "a7"}  # of older ones nothing is left
    record = SettledAttempts.decode((tmp_path / "a9.ckpt" / SETTLED).read_bytes(), what="the record")
    assert [uri.rpartition("/")[2] for uri in record.places] == [f"a{number}" for number in range(7, -1, -1)]


def test_a_state_that_was_put_back_in_a_settled_place_is_found_when_all_else_is_gone(tmp_path: Path) -> None:
    run(tmp_path, 1)
    backup = tmp_path / "backup.tar"
    shutil.copy(tmp_path / "a0.ckpt/000002-0001.tar", backup)
    for attempt in range(1, 6):
        chain = chain_of(tmp_path, attempt)
        chain.walk(lambda found: found)
        save(chain, 10 * attempt + 1)
        save(chain, 10 * attempt + 2)
    for archive in tmp_path.glob("*.ckpt/*.tar"):
        archive.write_bytes(b"damaged")
    with pytest.raises(ResumeExhausted):
        chain_of(tmp_path, 6).walk(lambda found: found)
    shutil.copy(backup, tmp_path / "a0.ckpt/000002-0001.tar")

    chain = chain_of(tmp_path, 7)
    chain.walk(lambda found: found)

    assert chain.found is not None
    assert chain.found.step == 2


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 1}', SettledAttempts({"run": "other"}, ()).encode()])
def test_a_record_that_cannot_be_used_hides_nothing(tmp_path: Path, content: bytes, looked_at: list[str]) -> None:
    run(tmp_path, 5)
    for place in tmp_path.glob("*.ckpt"):
        (place / SETTLED).write_bytes(content)
    looked_at.clear()

    chain = chain_of(tmp_path, 5)
    chain.walk(lambda found: found)

    assert chain.found is not None
    assert chain.found.step == 42
    assert set(looked_at) == {f"a{number}" for number in range(6)}


def test_another_chains_record_hides_nothing(tmp_path: Path) -> None:
    run(tmp_path, 2)
    theirs = SettledAttempts({"run": "other"}, tuple(f"file://{tmp_path}/a{number}" for number in range(2)))
    (tmp_path / "a1.ckpt" / SETTLED).write_bytes(theirs.encode())

    chain = chain_of(tmp_path, 2)
    chain.walk(lambda found: found)

    assert asked(chain)[1] == "a1"


def test_attempts_that_only_restored_and_died_are_not_asked_again(tmp_path: Path, looked_at: list[str]) -> None:
    run(tmp_path, 1)
    for attempt in range(1, 9):
        chain = chain_of(tmp_path, attempt)
        chain.walk(lambda found: found)
        forward = Forward.begin(chain, "reference")
        assert forward is not None
        forward.wait()
    looked_at.clear()

    chain = chain_of(tmp_path, 9)
    chain.walk(lambda found: found)

    assert chain.found is not None
    assert chain.found.step == 2
    assert set(looked_at) == {"a9", "a8", "a7", "a0"}  # the newest two, and the one that holds the state


def test_references_in_attempts_that_are_not_asked_go_before_what_they_refer_to(tmp_path: Path) -> None:
    run(tmp_path, 1)
    for attempt in range(1, 12):
        chain = chain_of(tmp_path, attempt)
        chain.walk(lambda found: found)
        forward = Forward.begin(chain, "reference")
        assert forward is not None
        forward.wait()

    chain = chain_of(tmp_path, 12)
    chain.walk(lambda found: found)
    left: list[int] = []
    for step in range(100, 108):
        save(chain, step)
        references = [path for path in tmp_path.glob("*.ckpt/000001-0001.tar") if is_reference(path)]
        left.append(len(references))
        if references:
            assert (tmp_path / "a0.ckpt/000002-0001.tar").exists(), "references lead somewhere"

    assert left[-1] == 0
    assert sorted(path.parent.name for path in tmp_path.glob("*.ckpt/*.tar")) == ["a12.ckpt", "a12.ckpt"]
    for attempt in (13, 14):
        chain_of(tmp_path, attempt).walk(lambda found: found)
    record = SettledAttempts.decode((tmp_path / "a14.ckpt" / SETTLED).read_bytes(), what="the record")
    assert record.references == ()  # nothing is left that they could refer to


def test_places_of_attempts_that_never_began_are_asked_each_time(tmp_path: Path, looked_at: list[str]) -> None:
    """Nobody can shut a place that is not there: an attempt that starts late may save in it."""
    run(tmp_path, 1)
    for attempt in (3, 4):
        looked_at.clear()
        chain_of(tmp_path, attempt).walk(lambda found: found)
        assert {"a1", "a2"} <= set(looked_at)


def test_a_restore_that_our_own_disk_refused_may_be_repeated(tmp_path: Path) -> None:
    run(tmp_path, 1)
    chain = chain_of(tmp_path, 1)
    has_room = False

    def load(found: FoundGeneration) -> int | None:
        with local_errors("cannot write"):
            if not has_room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return found.step

    with pytest.raises(ResumeBlocked, match="not at fault") as caught:
        chain.walk(load)
    assert caught.value.verdict == Verdict.LOCAL
    assert Verdict.LOCAL.may_pass
    with pytest.raises(ResumeBlocked):
        chain.begin()  # a save would go before what could not be restored

    has_room = True
    assert chain.walk(load) == 2
    chain.begin()


def test_no_space_on_a_local_disk_is_not_called_the_stores(tmp_path: Path) -> None:
    with pytest.raises(LocalResourceError, match="of this machine") as caught, local_errors("cannot write"):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    assert "gc" not in str(caught.value)
