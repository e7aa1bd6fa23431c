"""Attempts, restarts and zombies of one chain, interleaved at every storage call: what a chain promises holds in all.

A process resumes, forwards and saves with retention on, as ``Resume`` does. It may be killed anywhere, and
calls may fail, before or after they did what they do.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from interleaving import InThisThread, MemoryPlace, MemoryPlaces, World, one_after_the_other

from chockstone.checkpoints import Resume
from chockstone.checkpoints.errors import ResumeBlocked, ResumeExhausted, StoreError, Superseded
from chockstone.checkpoints.file_archive import write_files
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.reading.reader import verify_archive
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.claims import Generation
from chockstone.checkpoints.resume.attempts.generations import FORWARD, FoundGeneration, read_head_of
from chockstone.checkpoints.resume.attempts.places import FilePlace
from chockstone.checkpoints.resume.attempts.roots import attempt_place
from chockstone.checkpoints.resume.forward import Forward, Mode
from chockstone.checkpoints.resume.retention_runner import RetentionRunner
from chockstone.checkpoints.resume.walk import candidate_scanner
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.checkpoints.retention.policy import Retention
from chockstone.checkpoints.stores.store import Store

ROOT = "s3://bucket/run"
MOST_ATTEMPTS = 10
MODES: list[Mode] = ["reference", "reference", "copy", "off"]
WHEN = datetime(2026, 1, 1, tzinfo=UTC)
Rank = tuple[int, int]  # attempt, number


@dataclass(frozen=True, slots=True)
class Acknowledged:
    attempt: int
    generation: Generation
    step: int
    at: int

    @property
    def rank(self) -> Rank:
        return self.attempt, self.generation.number


@dataclass(frozen=True, slots=True)
class Resumed:
    attempt: int
    claimed_at: int
    rank: Rank  # of what it took; (-1, 0) for nothing
    step: int


@dataclass
class History:
    world: World
    acknowledged: list[Acknowledged] = field(default_factory=list)
    resumed: list[Resumed] = field(default_factory=list)
    claimed: dict[Rank, int] = field(default_factory=dict)  # when, by attempt and incarnation
    superseded: int = 0

    def chain(self, attempt: int | None) -> Chain:
        resume = Resume(ROOT, attempt=attempt)
        resume._places = MemoryPlaces(self.world)  # type: ignore[assignment]  # the same to all who use it
        return resume._chain()

    def live(self, attempt: int | None, *, saves: int, mode: Mode) -> None:
        """One process, from its start to its end."""
        try:
            chain = self.chain(attempt)
            step = self.resume(chain)
            if mode != "off" and chain.found is not None and chain.found.place.uri != chain.place.uri:
                self.world.start(Forward(chain, chain.found, mode)._run)
            store = chain.store_with(RetentionRunner(chain, Retention(keep_last=2)).tidy)
            for _ in range(saves):
                step += 1
                self._save(chain, store, step)
        except Superseded:
            self.superseded += 1
        except (ResumeBlocked, ResumeExhausted, StoreError) as error:
            if not self.world.faults:  # one may keep a fence from being written, and what it would have kept from going
                raise AssertionError(f"nothing is wrong with this store: {error}") from error

    def resume(self, chain: Chain) -> int:
        found = chain.walk(load)
        lease = chain.claim()
        assert chain.attempt is not None
        claimed_at = self.world.written[f"{chain.place.uri}.ckpt/claims/{lease.number:06d}.json"]
        self.claimed[chain.attempt, lease.number] = claimed_at
        rank, step = (-1, 0), 0
        if found is not None:
            assert chain.report is not None
            assert chain.report.choice is not None
            generation = Generation.parse(chain.report.choice.generation or "")
            assert generation is not None
            rank, step = (int(chain.report.choice.uri[-5:]), generation.number), found
        self.resumed.append(Resumed(chain.attempt, claimed_at, rank, step))
        return step

    def _save(self, chain: Chain, store: Store, step: int) -> None:
        generation = chain.begin()
        content = json.dumps({"step": step, "place": chain.place.uri, "generation": generation.name}).encode()
        write_files(store, generation.name, {"state": content}, step=step, metadata=chain.metadata, created_at=WHEN)
        assert chain.attempt is not None
        self.acknowledged.append(Acknowledged(chain.attempt, generation, step, self.world.now))


def load(found: FoundGeneration) -> int:
    with Archive(found.open(), verify="full") as archive:
        verify_archive(archive)
        state = json.loads(bytes(archive.read("state")))
    assert archive.manifest.step == state["step"]
    return int(state["step"])


def tell(seed: int) -> History:
    """Some attempts at once, some of them restarted where they stand, then one more when all is quiet."""
    world = World(seed)
    world.faulty = world.random.choice([0.0, 0.0, 0.01, 0.05])
    history = History(world)
    for _ in range(world.random.randint(2, 5)):
        attempt = world.random.choice([None, 0, 1, 1, 2, 2, 3])
        saves, mode = world.random.randint(0, 4), world.random.choice(MODES)
        world.start(lambda attempt=attempt, saves=saves, mode=mode: history.live(attempt, saves=saves, mode=mode))
    world.run()
    return history


def check(history: History) -> None:
    check_resumes(history)
    check_store(history)
    check_readers(history)


def check_resumes(history: History) -> None:
    """Nobody goes behind what was acknowledged before its claim, nor is told that all is well though it came late."""
    for resumed in history.resumed:
        for acknowledged in history.acknowledged:
            if acknowledged.at < resumed.claimed_at and acknowledged.attempt <= resumed.attempt:
                assert resumed.rank >= acknowledged.rank, f"{resumed} goes behind {acknowledged}"
    for acknowledged in history.acknowledged:
        mine = history.claimed[acknowledged.attempt, acknowledged.generation.incarnation]
        later = [at for (attempt, _), at in history.claimed.items() if attempt > acknowledged.attempt and at < mine]
        assert not later, f"{acknowledged} was acknowledged though a later attempt had begun before it did"


def check_store(history: History) -> None:
    """What was acknowledged and is there counts, references lead somewhere, and two good ones are left."""
    real = 0
    for number in range(MOST_ATTEMPTS):
        place = MemoryPlace(history.world, attempt_place(ROOT, number))
        attempt = Attempt.inspect(place)
        valid = set(attempt.generations) - attempt.superseded()
        for each in history.acknowledged:
            if each.attempt == number and each.generation in attempt.generations:
                assert each.generation in valid, f"{each} is superseded"
        for generation in valid:
            manifest = read_head_of(place, generation.name).manifest
            real += manifest.kind != FORWARD
            if manifest.kind == FORWARD:
                source = manifest.metadata["source"]
                there = MemoryPlace(history.world, source["uri"]).listing().archives
                assert source["generation"] in there, f"{place.uri} {generation} refers to nothing"
    assert real >= min(2, len(history.acknowledged)), "retention left fewer than two"


def check_readers(history: History) -> None:
    """Once all is quiet the next attempt goes behind nothing acknowledged, and who only looks sees the same."""
    onlooker = history.chain(None)
    onlooker._is_looking_only = True
    told = onlooker.explain()
    last = History(history.world)
    last.live(None, saves=0, mode="off")
    (resumed,) = last.resumed
    newest = max(history.acknowledged, key=lambda each: each.rank, default=None)
    if newest is not None:
        assert resumed.rank >= newest.rank, f"the last one goes behind {newest}"
    assert (told.choice.step if told.choice else 0) == resumed.step, "two readers differ"


@pytest.fixture(autouse=True)
def _no_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_scanner, "probe", one_after_the_other)
    monkeypatch.setattr(candidate_scanner, "ThreadPoolExecutor", InThisThread)


@pytest.mark.parametrize("block", range(4))
def test_whatever_the_order_a_chain_keeps_its_promises(block: int) -> None:
    for seed in range(block * 100, (block + 1) * 100):
        history = tell(seed)
        try:
            check(history)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.soak
def test_many_more_orders() -> None:
    kills = superseded = acknowledged = 0
    for seed in range(1000, 11_000):
        history = tell(seed)
        check(history)
        kills += history.world.kills
        superseded += history.superseded
        acknowledged += len(history.acknowledged)
    print(f"10000 histories, {kills} kills, {superseded} superseded, {acknowledged} saves acknowledged")


def test_a_listing_shows_no_archives_older_than_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, real = FilePlace(tmp_path / "attempt"), os.scandir
    place.put_if_absent("claims/000001.json", b"{}")

    def meanwhile(folder: Any) -> Any:
        if str(folder).endswith("claims"):
            (place.folder / "000001-0001.tar").touch()  # committed, and a fence that tells of it, a moment later
        return real(folder)

    monkeypatch.setattr(os, "scandir", meanwhile)

    assert place.listing().archives == {"000001-0001": 0}
