"""Restore attempts: what is taken, what is skipped and why, and how failed loads are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.checkpoints.errors import DamagedArchive, RestoreMismatch, StoreDenied
from chockstone.checkpoints.file_archive import write_files
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.restoring.walk_back import WalkBack
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.generations import CHAIN, FoundGeneration
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.walk.candidate_scanner import ScanResult, scan_results
from chockstone.checkpoints.resume.walk.probing import Deadline
from chockstone.checkpoints.resume.walk.restore_attempt import RestoreAttempt
from chockstone.checkpoints.resume.walk.rules import ResumeRules
from support.archives import NOON

IDENTITY = {"chain": "run"}
NAME = "000001-0001"
RULES = ResumeRules()


class Walk:
    """One walk over one place that holds one generation."""

    def __init__(self, folder: Path, *, identity: dict[str, str] = IDENTITY, rules: ResumeRules = RULES) -> None:
        self.places = AttemptPlaces()
        self.place = self.places.open(folder / "a0")
        if not (folder / "a0.ckpt").exists():
            metadata = {CHAIN: {"identity": identity, "attempt": 0}}
            write_files(self.place.store, NAME, {"x": b"1"}, step=7, metadata=metadata, created_at=NOON)
        self.warnings: list[str] = []
        self.attempt = RestoreAttempt(self.places, IDENTITY, rules, warn=self.warnings.append, is_looking_only=False)
        candidate = Candidate(self.place.uri, Origin.DERIVED, 0)
        self.results = scan_results(candidate, Attempt.inspect(self.place))

    def run(self, load: object) -> tuple[object, Verdict]:
        walk: WalkBack[ScanResult] = WalkBack(self.results)
        loaded = None
        for result in walk:
            loaded = self.attempt.run(result, walk, load, Deadline(60))  # type: ignore[arg-type]  # any loader
        return loaded, walk.judged[-1].verdict


def raises(error: Exception) -> object:
    def load(found: FoundGeneration) -> None:
        raise error

    return load


def test_a_generation_of_the_chain_is_loaded(tmp_path: Path) -> None:
    walk = Walk(tmp_path)

    assert walk.run(lambda found: found.step) == (7, Verdict.VERIFIED)
    assert walk.attempt.found is not None
    assert walk.warnings == []


def test_a_generation_of_another_chain_is_not_opened(tmp_path: Path) -> None:
    assert Walk(tmp_path, identity={"chain": "other"}).run(raises(AssertionError("it is not ours"))) == (
        None,
        Verdict.FOREIGN,
    )


@pytest.mark.parametrize(
    ("error", "verdict"), [(DamagedArchive("torn"), Verdict.CORRUPT), (StoreDenied("no"), Verdict.DENIED)]
)
def test_the_error_of_a_loader_is_judged_and_kept(tmp_path: Path, error: Exception, verdict: Verdict) -> None:
    walk = Walk(tmp_path)

    assert walk.run(raises(error)) == (None, verdict)
    assert walk.attempt.error is error


def test_a_state_that_does_not_fit_the_target_is_raised(tmp_path: Path) -> None:
    with pytest.raises(RestoreMismatch):
        Walk(tmp_path).run(raises(RestoreMismatch("another shape")))


def test_after_so_many_failed_restores_a_generation_is_skipped(tmp_path: Path) -> None:
    rules = ResumeRules(poison_after=2)
    for _ in range(2):
        with pytest.raises(RestoreMismatch):  # the record of the restore stays
            Walk(tmp_path, rules=rules).run(raises(RestoreMismatch("it kills us")))

    assert Walk(tmp_path, rules=rules).run(lambda found: 1) == (None, Verdict.POISONED)
    assert Walk(tmp_path).run(lambda found: 1) == (1, Verdict.VERIFIED), "unless nobody counts"
