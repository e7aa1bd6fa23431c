"""Attempts: one attempt after the other resumes and saves, on S3, through the adapters for Flyte.

Counts what each attempt asks of the store, and the whole states that are on it in the end: archives, and the copies
for readers that know only Flyte's own layout. Nothing is timed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

import boto3

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Rows, Series
from benchmarks.resume.loopback import BUCKET
from benchmarks.resume.setup import Setup, WrongRestore
from chockstone.integrations.flyte.layouts import LEAF, shard

FLYTE1 = "flyte 1"
FLYTE2 = "flyte 2"
OURS = (FLYTE1, FLYTE2)
KEPT: Final = 2  # by the retention of the adapters
FILE_REQUESTS: Final = 5  # for the one file of a state: read it, copy it (two), look at an older copy and remove it
_BYTES: Final = 100_000
_STEM: Final = "feda4e266c748463a97d-n0"


def measure_attempts(context: Context, setup: Setup) -> Rows:
    context.describe(f"{setup.scale.resumed} attempts, each resumes and saves one file, loopback S3")
    rows: Rows = {}
    for name, attempt in ((FLYTE1, _flyte1), (FLYTE2, _flyte2)):
        context.say(f"{name}: {setup.scale.resumed} attempts")
        try:
            rows[name] = _measured(setup, attempt)
        except ImportError as error:
            rows[name] = Series(failure=str(error))
    return rows


def _measured(setup: Setup, attempt: Callable[[str, int, bytes], bytes | None]) -> Series:
    base, before = setup.s3.new_prefix(), None
    row = Series()
    with setup.s3.counted() as proxy:
        for number in range(setup.scale.resumed):
            proxy.requests.clear()
            content = os.urandom(_BYTES)
            if attempt(base, number, content) != before:
                raise WrongRestore(f"attempt {number} did not restore what the one before it saved")
            before = content
            row.samples.setdefault("requests", []).append(max(0, len(proxy.requests) - FILE_REQUESTS))
    row.samples["most"] = [max(row.samples["requests"])]
    row.samples["states"] = [_states(setup, base)]
    return row


def _flyte1(base: str, number: int, content: bytes) -> bytes | None:
    from chockstone.integrations.flyte import FlyteCheckpoint

    def place(attempt: int) -> str:
        uid = f"{_STEM}-{attempt}"
        return f"{base}/{shard(uid)}/{uid}/{LEAF}"

    checkpoint = FlyteCheckpoint(checkpoint_dest=place(number), checkpoint_src=place(number - 1) if number else None)
    restored: bytes | None = checkpoint.read() if checkpoint.prev_exists() else None
    checkpoint.close()
    checkpoint.write(content)
    return restored


def _flyte2(base: str, number: int, content: bytes) -> bytes | None:
    from chockstone.integrations.flyte2 import Flyte2Checkpoint

    def place(attempt: int) -> str:
        return f"{base}/r1/a0/{attempt}/{LEAF}"

    source = place(number) if number else None
    checkpoint = Flyte2Checkpoint(place(number + 1), source, identity={"run": "r1", "action": "a0"})
    found = checkpoint.load_sync()
    for thread in threading.enumerate():
        if thread.name == "chockstone-forward":  # it would be counted with the next one
            thread.join(60)
    restored = None if found is None else found.read_bytes()
    checkpoint.save_sync(content)
    return restored


def _states(setup: Setup, base: str) -> int:
    client = boto3.client("s3", endpoint_url=setup.s3.url)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=base.removeprefix(f"s3://{BUCKET}/"))
    return sum(item["Size"] >= _BYTES for page in pages for item in page.get("Contents", []))
