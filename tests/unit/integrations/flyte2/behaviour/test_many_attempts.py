"""Many attempts: what each asks of S3 does not grow, and the copies for Flyte do not pile up."""

from __future__ import annotations

import os
import threading

import pytest

from support.integrations.flyte2_attempts import BUCKET, Storage
from support.loopback_s3 import faulty_proxy

ATTEMPTS = 9
MOST_REQUESTS = 45  # of which five are for the one object of a state: read it, copy it twice, remove an older copy
STATE = 100_000


def test_requests_and_states_do_not_grow_with_the_number_of_attempts(
    s3: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    with faulty_proxy(s3.server) as proxy:
        monkeypatch.setenv("FLYTE_AWS_ENDPOINT", proxy.url)
        for number in range(1, ATTEMPTS + 1):
            proxy.requests.clear()
            checkpoint = s3.attempt(number)
            checkpoint.load_sync()
            for thread in threading.enumerate():
                if thread.name == "chockstone-forward":
                    thread.join(60)
            checkpoint.save_sync(os.urandom(STATE))
            counts.append(len(proxy.requests))

    assert max(counts) <= MOST_REQUESTS
    assert counts[-1] <= counts[-4]
    listed = s3._client().list_objects_v2(Bucket=BUCKET, Prefix=s3.base.removeprefix(f"s3://{BUCKET}/"))
    states = [item["Key"] for item in listed["Contents"] if item["Size"] >= STATE]
    assert len(states) <= 2 + 2  # what retention keeps, and two copies
    assert s3.read(ATTEMPTS - 1)  # a task that goes back to Flyte's own checkpoint reads this
