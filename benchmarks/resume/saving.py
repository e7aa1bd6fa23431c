"""Saving: one durable save of 60 MB by a Checkpointer, and by an attempt of a chain, which checks for a fence twice.

The claim is made once for each attempt, before the first save, and is not counted here. A row with
retention has it on either side.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from itertools import count

from benchmarks.checkpoints.states import State, small_tensors
from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Turn, compare_by_round
from benchmarks.resume.setup import Setup
from chockstone.checkpoints import Checkpointer, Resume, Retention

SAVED = "500 tensors, 60 MB"
STORES = ("file", "s3")
PLAIN = {store: f"{store}: Checkpointer" for store in STORES}
CHAINED = {store: f"{store}: Resume" for store in STORES}
PLAIN_KEEPING = {store: f"{store}: Checkpointer, keeping two" for store in STORES}
CHAINED_KEEPING = {store: f"{store}: Resume, keeping two" for store in STORES}
OURS = {*CHAINED.values(), *CHAINED_KEEPING.values()}

_ALL = Retention()
_TWO = Retention(keep_last=2)


def measure_saving(context: Context, setup: Setup) -> Rows:
    state = small_tensors()
    context.describe(SAVED)
    rows: Rows = {}
    for store in STORES:
        rows |= _measure(context, setup, state, store)
    return rows


def _measure(context: Context, setup: Setup, state: State, store: str) -> Rows:
    def root(name: str) -> str:
        return str(context.directory / name) if store == "file" else setup.s3.new_prefix() + f"/{name}"

    with ExitStack() as stack:
        turns: dict[str, Turn] = {}
        kept = 2 if setup.scale.keeping else 1
        for name, retention in ((PLAIN[store], _ALL), (PLAIN_KEEPING[store], _TWO))[:kept]:
            checkpointer = Checkpointer(root(f"plain-{len(turns)}"), retention=retention)
            turns[name] = _plainly(stack.enter_context(checkpointer), state, removes=retention is _ALL)
        for name, retention in ((CHAINED[store], _ALL), (CHAINED_KEEPING[store], _TWO))[:kept]:
            resume = stack.enter_context(Resume(root(f"chain-{len(turns)}"), attempt=0, retention=retention))
            turns[name] = _chained(resume, state, removes=retention is _ALL)
        rows = context.run_rounds(turns, repeats=setup.scale.saves)
    for plain, chained in ((PLAIN, CHAINED), (PLAIN_KEEPING, CHAINED_KEEPING))[:kept]:
        compare_by_round(rows, chained[store], plain[store])
    return rows


def _plainly(checkpointer: Checkpointer, state: State, *, removes: bool) -> Turn:
    steps = count(1)

    def save() -> Metrics:
        began = time.perf_counter()
        saved = checkpointer.save(state.tree, step=next(steps)).result()
        seconds = time.perf_counter() - began
        if removes:
            checkpointer.store.delete(saved.name)
        return {"seconds": seconds}

    return save


def _chained(resume: Resume, state: State, *, removes: bool) -> Turn:
    steps = count(1)
    resume.resolve()  # claims, as a restore does

    def save() -> Metrics:
        began = time.perf_counter()
        saved = resume.save(state.tree, step=next(steps)).result()
        seconds = time.perf_counter() - began
        if removes:
            Checkpointer(f"{resume.place}.ckpt").store.delete(saved.name)
        return {"seconds": seconds}

    return save
