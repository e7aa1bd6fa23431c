"""Forwarding: a restore of 60 MB directly from its attempt, and through a reference that a later attempt left.

These restores claim and write nothing, so each finds what the one before it found.
"""

from __future__ import annotations

import time

from benchmarks.checkpoints.states import State, small_tensors
from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Turn, compare_by_round
from benchmarks.resume.saving import SAVED, STORES
from benchmarks.resume.setup import Setup, WrongRestore
from chockstone.checkpoints import Archive, Resume, restore_state
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.generations import FoundGeneration
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.walk.chain import Chain

DIRECT = {store: f"{store}: directly" for store in STORES}
REFERRED = {store: f"{store}: through a reference" for store in STORES}


def measure_forwarding(context: Context, setup: Setup) -> Rows:
    state = small_tensors()
    context.describe(SAVED)
    target = state.zeros_like()
    turns: dict[str, Turn] = {}
    for store in STORES:
        root = str(context.directory) if store == "file" else f"{setup.s3.new_prefix()}/forward"
        context.say(f"{store}: two attempts")
        saved, forwarded = _make(root, state, target)
        turns[DIRECT[store]] = _restoring([saved], target, state)
        turns[REFERRED[store]] = _restoring([forwarded, saved], target, state)
    rows = context.run_rounds(turns, repeats=setup.scale.restores)
    for store in STORES:
        compare_by_round(rows, REFERRED[store], DIRECT[store])
    return rows


def _make(root: str, state: State, target: State) -> tuple[str, str]:
    """Returns the places of an attempt that saved, and of one that only restored."""
    with Resume(root, attempt=0) as first:
        first.restore(target.tree)
        first.save(state.tree, step=1).result()
    with Resume(root, attempt=1) as second:
        second.restore(target.tree)
    return first.place, second.place


def _restoring(uris: list[str], target: State, state: State) -> Turn:
    def load(found: FoundGeneration) -> bool:
        with Archive(found.open()) as archive:
            restore_state(archive, target.tree)
        return True

    def restore() -> Metrics:
        candidates = [Candidate(uri, Origin.USER, may_be_foreign=True) for uri in uris]
        chain = Chain(
            AttemptPlaces(),
            f"{uris[-1]}-next",
            identity={"chain": "forward"},
            candidates=candidates,
            is_looking_only=True,
        )
        began = time.perf_counter()
        chain.walk(load)
        seconds = time.perf_counter() - began
        if chain.found is None or chain.found.place.uri != uris[-1] or not target.equals(state):
            raise WrongRestore(f"restored {chain.found}")
        requests = chain.report.requests if chain.report else 0
        return {"seconds": seconds, "requests": requests}

    return restore
