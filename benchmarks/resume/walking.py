"""Walking: the hundredth attempt looks for the one checkpoint there is, that of the first, on S3.

Places are as Flyte makes them, each attempt's known by its number alone, so all have to be looked at. The peers do
what a loop around them does: try one candidate after the other, take the first that does not fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import boto3
import numpy as np

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Series
from benchmarks.resume.loopback import BUCKET
from benchmarks.resume.setup import Setup, WrongRestore
from chockstone.checkpoints import Archive, Checkpointer, restore_state
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.generations import FoundGeneration
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.walk.chain import Chain

NEVER = "ours, attempts that never wrote"
DIED = "ours, attempts that claimed and died"
FLYTEKIT = "flytekit, one candidate after the other"
BOTO3 = "boto3, one candidate after the other"
OURS = (NEVER, DIED)

IDENTITY = {"project": "benchmark", "execution": "f1", "node": "n0"}
STEP = 7
_VALUES = 250_000  # of 4 bytes


def measure_walking(context: Context, setup: Setup) -> Rows:
    last = setup.scale.attempts - 1
    context.describe(f"attempt {last} of a chain, the first one's is the only good one, loopback S3")
    walks: dict[str, Callable[[Context, Setup], _Walk]] = {NEVER: _Ours, DIED: _OursAfterDeaths, BOTO3: _Boto3}
    absent: Rows = {}
    try:
        import flytekit  # noqa: F401

        walks[FLYTEKIT] = _Flytekit
    except ImportError:
        absent[FLYTEKIT] = Series(failure="flytekit is not installed")
    turns = {name: _Turn(context, setup, make) for name, make in walks.items()}
    rows = context.run_rounds(turns, repeats=setup.scale.walks)
    for name, turn in turns.items():
        rows[name].samples |= {metric: [value] for metric, value in turn.counts.items()}
    return rows | absent


class _Turn:
    """The first walk, which no round counts, goes through the proxy that counts requests; the others are timed."""

    def __init__(self, context: Context, setup: Setup, make: Callable[[Context, Setup], _Walk]) -> None:
        self._context = context
        self._setup = setup
        self._make = make
        self.counts: Metrics = {}

    def __call__(self) -> Metrics:
        walk = self._make(self._context, self._setup)
        if self.counts:
            return _timed(walk)
        self.counts = _counted(self._setup, walk)
        return self.counts


class _Walk:
    """A place for each attempt, with a checkpoint in the first. Made anew for each walk, because walks write marks."""

    def __init__(self, context: Context, setup: Setup) -> None:
        prefix = setup.s3.new_prefix()
        self.uris = [f"{prefix}/f1-n0-{attempt}/_flytecheckpoints" for attempt in range(setup.scale.attempts)]
        self.directory = context.directory
        self.prepare()

    def prepare(self) -> None:
        raise NotImplementedError

    def walk(self) -> None:
        """As the last attempt, restore what the first one saved. Raises WrongRestore."""
        raise NotImplementedError


class _Ours(_Walk):
    def prepare(self) -> None:
        self.places = AttemptPlaces()  # shared by all earlier attempts: connecting takes longer than a request
        first = _chain(self.places, self.uris, 0)
        first.walk(lambda found: found)
        with Checkpointer(first.store) as checkpointer:
            state = {"w": np.ones(_VALUES, dtype=np.float32)}
            checkpointer.save(state, name=first.begin().name, step=STEP, metadata=first.metadata).result()

    def walk(self) -> None:
        state = {"w": np.zeros(_VALUES, dtype=np.float32)}

        def load(found: FoundGeneration) -> bool:
            with Archive(found.open()) as archive:
                restore_state(archive, state)
            return True

        chain = _chain(AttemptPlaces(), self.uris, len(self.uris) - 1)
        chain.walk(load)
        if chain.found is None or chain.found.step != STEP or not state["w"].all():
            raise WrongRestore(f"restored {chain.found}")


class _OursAfterDeaths(_Ours):
    def prepare(self) -> None:
        super().prepare()
        for attempt in range(1, len(self.uris) - 1):
            chain = _chain(self.places, self.uris, attempt)
            chain.claim()  # and dies before it fences any other, so the last attempt has to fence all


class _Native(_Walk):
    def prepare(self) -> None:
        client = boto3.client("s3")
        client.put_object(Bucket=BUCKET, Key=f"{_key(self.uris[0])}/state", Body=b"\x01" * _VALUES * 4)

    def check(self, directory: str) -> None:
        found = [path.stat().st_size for path in Path(directory).rglob("*") if path.is_file()]
        if found != [_VALUES * 4]:
            raise WrongRestore(f"restored files of {found} bytes")


class _Boto3(_Native):
    def walk(self) -> None:
        client: Any = boto3.client("s3")
        with TemporaryDirectory(dir=self.directory) as target:
            for uri in reversed(self.uris[:-1]):
                listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{_key(uri)}/")
                for each in listed.get("Contents", ()):
                    client.download_file(BUCKET, each["Key"], f"{target}/{Path(each['Key']).name}")
                if listed["KeyCount"]:
                    break
            self.check(target)


class _Flytekit(_Native):
    def walk(self) -> None:
        from flytekit.configuration import DataConfig
        from flytekit.core.checkpointer import SyncCheckpoint
        from flytekit.core.context_manager import FlyteContextManager
        from flytekit.core.data_persistence import FileAccessProvider

        with TemporaryDirectory(dir=self.directory) as target:
            # As the entrypoint of a task does it, for the endpoint of this moment.
            access = FileAccessProvider(f"{target}.sandbox", self.uris[-1], data_config=DataConfig.auto())
            context = FlyteContextManager.current_context().with_file_access(access)
            with FlyteContextManager.with_context(context):
                for uri in reversed(self.uris[:-1]):
                    try:
                        SyncCheckpoint(checkpoint_dest=self.uris[-1], checkpoint_src=uri).restore(target)
                        break
                    except Exception:  # as a loop does that tries the next candidate after any error
                        continue
            self.check(target)


def _chain(places: AttemptPlaces, uris: list[str], attempt: int) -> Chain:
    older = [Candidate(uris[number], Origin.DERIVED, number) for number in reversed(range(attempt))]
    return Chain(places, uris[attempt], identity=IDENTITY, attempt=attempt, candidates=older)


def _key(uri: str) -> str:
    return uri.removeprefix(f"s3://{BUCKET}/")


def _timed(walk: _Walk) -> Metrics:
    began = time.perf_counter()
    walk.walk()
    return {"seconds": time.perf_counter() - began}


def _counted(setup: Setup, walk: _Walk) -> Metrics:
    with setup.s3.counted() as proxy:
        walk.walk()
        asked = list(proxy.requests)
    of_winner = sum(_key(walk.uris[0]).replace("/", "%2F") in line or _key(walk.uris[0]) in line for line in asked)
    return {"requests": len(asked) - of_winner, "winner": of_winner}
