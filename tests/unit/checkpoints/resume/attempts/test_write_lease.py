"""Entering the log of a place: where a later attempt has shut it, and where the answer to our own entry was lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.checkpoints.errors import Superseded
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.claims import Claim, Kind
from chockstone.checkpoints.resume.attempts.places import FilePlace
from chockstone.checkpoints.resume.attempts.write_lease import WriteLease, fence, new_claim


def entry(kind: Kind, by: str = "file:///later") -> Claim:
    return new_claim(kind, by=by, attempt=1, identity={"chain": "run"}, given=(), foreign=(), had_flyte_native=False)


@pytest.mark.parametrize("lost", ["nothing", "claims/000002.fenced.json", "claims/000002.json"])
def test_a_place_that_was_shut_cannot_be_claimed_again(tmp_path: Path, lost: str) -> None:
    """Either record of the fence is enough to know."""
    place = FilePlace(tmp_path / "run")
    held = WriteLease.claim(Attempt.inspect(place), entry("claim"))
    fence(Attempt.inspect(place), entry("fence"))
    place.delete(lost)
    with pytest.raises(Superseded, match="taken over"):
        held.check()
    with pytest.raises(Superseded, match="was fenced"):
        WriteLease.claim(Attempt.inspect(place), entry("claim"))


def test_a_place_that_is_shut_while_it_is_being_claimed_is_not_claimed(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "run")
    before = Attempt.inspect(place)
    fence(before, entry("fence"))
    with pytest.raises(Superseded, match="was fenced by file:///later"):
        WriteLease.claim(before, entry("claim"))


def test_a_claim_whose_answer_was_lost_is_held_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is asked again says that it is there already: by whom, the nonce tells."""
    place = FilePlace(tmp_path / "run")
    put = FilePlace.put_if_absent

    def answers_late(self: FilePlace, record: str, content: bytes) -> bool:
        put(self, record, content)
        return False

    monkeypatch.setattr(FilePlace, "put_if_absent", answers_late)
    held = WriteLease.claim(Attempt.inspect(place), entry("claim"))
    assert held.number == 1
    held.check()
    assert sorted(place.records("claims")) == ["claims/000001.json", "claims/000001.seen.json"]
