"""Worlds to break: a chain of attempts in a directory or on loopback S3, and every way to harm what it stored.

A world names what it stores by paths of its own, the same on both: ``run/attempt-00001.ckpt/000001-0001.tar``.
States are filled with their step, so that a mixture of two shows.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from chockstone.checkpoints.file_archive import extract_files, write_files
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.resume import Resume, ResumeReport, Verdict
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.generations import CHAIN, FoundGeneration
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.checkpoints.resume.walk.rules import ResumeRules
from chockstone.checkpoints.retention.policy import Retention
from chockstone.checkpoints.stores.bucket import RetryPolicy
from support.hostile_archives import CREATED_AT
from support.loopback_s3 import Fault, Kind, Proxy

RETRY_POLICY = RetryPolicy(attempts=2, connect_seconds=3.0, silence_seconds=3.0)  # a busy machine takes more than one
IDENTITY = {CHAIN: "run"}  # what a Resume of ``World.root`` says of itself
WORDS = 40_000  # of the largest tensor: several blocks
DENIED = Fault(Kind.STATUS, 403, "AccessDenied")
EXPIRED = Fault(Kind.STATUS, 400, "ExpiredToken")
BROKEN = Fault(Kind.STATUS, 500, "InternalError")
BUSY = Fault(Kind.STATUS, 503, "SlowDown")
MANY = Fault(Kind.STATUS, 429, "TooManyRequests")
RESET = Fault(Kind.RESET)
SHORT = Fault(Kind.SHORT_BODY)
HANG = Fault(Kind.STALL)

Damage = Literal["truncate", "flip", "delete", "zero", "append"]
DAMAGES: Sequence[Damage] = ("truncate", "flip", "delete", "zero", "append")


def state(step: int, *, words: int = WORDS) -> dict[str, Any]:
    return {
        "model": {"w": np.full(words, float(step)), "b": np.full(700, step, dtype=np.int32)},
        "optimizer": {"moment": np.full(words // 4, float(step), dtype=np.float32)},
        "epoch": step,
    }


def step_of(target: dict[str, Any]) -> int:
    """Of what was restored into it. Fails where two steps are mixed."""
    arrays = (target["model"]["w"], target["model"]["b"], target["optimizer"]["moment"])
    found = {target["epoch"], *(int(value) for array in arrays for value in np.unique(array))}
    assert len(found) == 1, f"a mixture of {sorted(found)}"
    return int(found.pop())


class World(ABC):
    """Where chains live. ``base`` is its URI; all of it belongs to one test."""

    kind: Literal["file", "s3"]
    base: str

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    # -- what is stored

    @abstractmethod
    def names(self, below: str = "") -> list[str]:
        """Everything that is stored at or below a path, partial writes aside."""

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    @abstractmethod
    def write(self, name: str, content: bytes) -> None: ...

    @abstractmethod
    def delete(self, name: str) -> None: ...

    def damage(self, name: str, how: Damage, *, at: int | None = None) -> None:
        """``at``: the byte to flip, counted from the end if negative; the middle one by default."""
        if how == "delete":
            self.delete(name)
            return
        content = bytearray(self.read(name))
        if how == "truncate":
            del content[len(content) * 2 // 3 if at is None else at :]
        elif how == "flip":
            content[len(content) // 2 if at is None else at] ^= 0x20
        elif how == "zero":
            content[:] = bytes(len(content))
        else:
            content += b"\0more"
        self.write(name, bytes(content))

    def archives(self, attempt: int | None = None) -> list[str]:
        """Paths of the committed generations below the root, of one attempt or all, oldest first."""
        below = "run" if attempt is None else self.folder(attempt)
        return [name for name in self.names(below) if name.endswith(".tar")]

    def folder(self, attempt: int) -> str:
        return f"run/attempt-{attempt:05d}.ckpt"

    # -- faults while it is looked at

    @abstractmethod
    def deny(self, containing: str) -> None:
        """Nobody may list or read what has this in its path, until ``heal``."""

    @abstractmethod
    def interrupt(self, containing: str) -> None:
        """Looking at what has this in its path fails for reasons of the network or the disk, until ``heal``."""

    @abstractmethod
    def heal(self) -> None: ...

    # -- attempts

    def uri(self, name: str) -> str:
        return f"{self.base}/{name}"

    @property
    def root(self) -> str:
        return self.uri("run")

    def place(self, attempt: int) -> str:
        return self.uri(f"run/attempt-{attempt:05d}")

    def resume(self, attempt: int | None = None, **options: Any) -> Resume:
        """An attempt at the root. What it keeps and how long it waits is for tests; the rest is as for users."""
        told = {"retry_policy": RETRY_POLICY, "retention": Retention(), "forward": "off", **options}
        return Resume(told.pop("root", self.root), attempt=attempt, **told)

    def attempt(self, number: int, *steps: int, restores: bool = False, **options: Any) -> None:
        """Make one: it claims its place, saves these steps, and ends."""
        with self.resume(number, **options) as resume:
            if restores:
                resume.restore(state(0))
            elif steps:
                resume.acknowledge_fresh_start()  # saves by themselves, and neither looks at others nor fences them
            for step in steps:
                resume.save(state(step), step=step).result()
            if not steps and not restores:
                resume._chain().claim()

    def restore(self, attempt: int | None = None, **options: Any) -> tuple[int, Resume]:
        """The step whose numbers a new attempt gets, 0 on a proven fresh start, and the attempt."""
        target = state(0)
        with self.resume(attempt, **options) as resume:
            receipt = resume.restore(target)
        assert (receipt is None) == (step_of(target) == 0)
        assert receipt is None or receipt.step == resume.step == step_of(target)
        return step_of(target), resume

    def verdicts(self, report: ResumeReport | None) -> list[tuple[str, Verdict]]:
        """What was said of each candidate: the last part of its place, with the generation if it is one's."""
        assert report is not None
        return [
            (f"{each.uri.rpartition('/')[2]}{f':{each.generation}' if each.generation else ''}", each.verdict)
            for each in report.looked
            if each.reached
        ]

    # -- chains of a platform

    def chain(self, own: str, *candidates: Candidate, attempt: int | None = None, **options: Any) -> Chain:
        """A chain whose places are named one by one; ``own`` is a path of this world."""
        identity = options.pop("identity", IDENTITY)
        rules = options.pop("rules", ResumeRules())
        places = options.pop("places", None) or AttemptPlaces(retry_policy=RETRY_POLICY)
        return Chain(
            places, self.uri(own), identity=identity, attempt=attempt, candidates=candidates, rules=rules, **options
        )

    def derived(self, attempts: Iterable[int]) -> list[Candidate]:
        return [Candidate(self.place(number), Origin.DERIVED, number) for number in attempts]

    def save_files(self, chain: Chain, step: int, files: dict[str, bytes] | None = None) -> str:
        """A generation of files, each of which says its step; returns its name."""
        contents = files or {f"part-{index}.bin": f"step {step}".encode() * 1000 for index in range(4)}
        name = chain.begin().name
        write_files(chain.store, name, contents, step=step, metadata=chain.metadata, created_at=CREATED_AT)
        return name

    def loader(self, directory: Path) -> Callable[[FoundGeneration], int]:
        """For ``Chain.walk``: extracts a generation of files elsewhere, and moves it to ``directory`` once whole."""

        def load(found: FoundGeneration) -> int:
            staging = directory.with_name(f"{directory.name}.staging-{time.monotonic_ns()}")
            staging.mkdir()
            try:
                with Archive(found.open()) as archive:
                    extract_files(archive, staging)
                if directory.exists():
                    shutil.rmtree(directory)
                staging.rename(directory)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
            return found.step or 0

        return load


class FileWorld(World):
    kind = "file"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        super().__init__(monkeypatch)
        self.path = folder
        self.base = folder.as_uri()
        self._real: dict[str, Any] = {}  # Any: functions of os, as they were

    def names(self, below: str = "") -> list[str]:
        files = (path for path in (self.path / below).rglob("*") if path.is_file() and ".partial" not in path.parts)
        return sorted(str(path.relative_to(self.path)) for path in files)

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it may share its bytes with another
        path.write_bytes(content)

    def delete(self, name: str) -> None:
        (self.path / name).unlink()

    def deny(self, containing: str) -> None:
        self.fail(errno.EACCES, containing)

    def interrupt(self, containing: str) -> None:
        self.fail(errno.EIO, containing)

    def fail(
        self,
        number: int,
        containing: str,
        *,
        calls: Sequence[str] = ("scandir", "listdir", "open", "preadv"),
        times: int = 1_000_000,
        after: int = 0,
    ) -> None:
        """These functions of ``os`` raise that errno on paths that contain the text, but for ``after`` of them."""
        left = [times + after]

        def failing(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*values: Any, **options: Any) -> Any:
                if left[0] > 0 and containing in path_of(values[0] if values else "."):
                    left[0] -= 1
                    if left[0] < times:
                        raise OSError(number, os.strerror(number), path_of(values[0] if values else "."))
                return real(*values, **options)

            return call

        for name in calls:
            self._real.setdefault(name, getattr(os, name))
            self.monkeypatch.setattr(os, name, failing(getattr(os, name)))

    def heal(self) -> None:
        for name, real in self._real.items():
            self.monkeypatch.setattr(os, name, real)


class S3World(World):
    kind = "s3"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, proxy: Proxy, bucket: str, prefix: str) -> None:
        super().__init__(monkeypatch)
        import boto3

        self.proxy = proxy
        self._bucket = bucket
        self._prefix = prefix
        self.base = f"s3://{bucket}/{prefix}"
        self._client = boto3.client("s3", endpoint_url=proxy.upstream)  # past the proxy

    def names(self, below: str = "") -> list[str]:
        start = f"{self._prefix}/{below}".rstrip("/")
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=start)
        keys = (item["Key"] for page in pages for item in page.get("Contents", []))
        return sorted(key[len(self._prefix) + 1 :] for key in keys if key == start or key.startswith(f"{start}/"))

    def read(self, name: str) -> bytes:
        body: bytes = self._client.get_object(Bucket=self._bucket, Key=f"{self._prefix}/{name}")["Body"].read()
        return body

    def write(self, name: str, content: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=f"{self._prefix}/{name}", Body=content)

    def delete(self, name: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=f"{self._prefix}/{name}")

    def deny(self, containing: str) -> None:
        self.inject(DENIED, containing)

    def interrupt(self, containing: str) -> None:
        self.inject(BUSY, containing)

    def inject(
        self,
        fault: Fault,
        containing: str,
        *,
        methods: Sequence[str] = ("GET", "HEAD"),
        times: int = 1_000_000,
        after: int = 0,
    ) -> None:
        """Requests of these methods whose target contains the text are answered so, but for the first ``after``.

        A listing is a GET that holds the path with ``%2F`` for its slashes.
        """
        for method in methods:
            self.proxy.inject(fault, method=method, containing=containing, times=times, after=after)

    def heal(self) -> None:
        self.proxy.heal()

    def requests(self, *methods: str, containing: str = "") -> list[str]:
        """That came since the last ``heal``, repeated ones too."""
        ours = (f"{self._prefix}/", f"{self._prefix}%2F")  # one that was given up elsewhere may come late
        chosen = [each for each in self.proxy.requests if any(mark in each for mark in ours)]
        return [each for each in chosen if (not methods or each.partition(" ")[0] in methods) and containing in each]


def path_of(place: object) -> str:
    """Of a path or a descriptor."""
    if isinstance(place, int):
        try:
            return os.readlink(f"/proc/self/fd/{place}")
        except OSError:
            return ""
    return os.fspath(place) if isinstance(place, str | os.PathLike) else ""


def record(world: World, name: str) -> dict[str, Any]:
    """A claim or the like, parsed."""
    values: dict[str, Any] = json.loads(world.read(name))
    return values


def refused(world: World, error: type[Exception], attempt: int | None = None, **options: Any) -> Any:
    """The error with which a restore is refused. Nothing may have reached the target."""
    target = state(0)
    with world.resume(attempt, **options) as resume:
        with pytest.raises(error) as caught:
            resume.restore(target)
    assert step_of(target) == 0, "the target was touched"
    return caught.value
