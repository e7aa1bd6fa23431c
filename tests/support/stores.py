"""Where the servers of the tests keep their archives: in their data directory, or in a bucket on the loopback S3.

``CHOCKSTONE_TEST_STORE=s3`` has every live server keep them in a bucket, each below a prefix of its own.
"""

from __future__ import annotations

import atexit
import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from support.loopback_s3 import ENVIRONMENT, FORGOTTEN, make_bucket, s3_server

if TYPE_CHECKING:
    from chockstone.checkpoints.stores.object_store import ObjectStore

BUCKET = "chockstone"
IS_S3 = os.environ.get("CHOCKSTONE_TEST_STORE") == "s3"


@dataclass(frozen=True)
class S3Place:
    """A prefix in a bucket, behind an endpoint."""

    endpoint: str
    prefix: str
    bucket: str = BUCKET

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def environment(self, others: Mapping[str, str]) -> dict[str, str]:
        """For a process that is to use it, with what else it has."""
        kept = {name: value for name, value in others.items() if name not in FORGOTTEN}
        return {**kept, **ENVIRONMENT, "AWS_ENDPOINT_URL_S3": self.endpoint}


@cache
def open_place(place: S3Place) -> ObjectStore:
    """In this process, whatever its environment."""
    from chockstone.checkpoints.stores.bucket import (  # late: an older client's environment has none
        RetryPolicy,
        S3Access,
    )
    from chockstone.checkpoints.stores.object_store import ObjectStore, connect

    access = S3Access(
        place.endpoint,
        ENVIRONMENT["AWS_ACCESS_KEY_ID"],
        ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
        region=ENVIRONMENT["AWS_REGION"],
    )
    return ObjectStore(connect("s3", place.bucket, RetryPolicy(), access), place.prefix)


def place_in(endpoint: str) -> S3Place:
    """A prefix that nobody has used."""
    return S3Place(endpoint, f"server-{secrets.token_hex(4)}")


@cache
def shared_endpoint() -> str:
    """An S3 server with a bucket, for as long as this process runs."""
    running = ExitStack()
    url = running.enter_context(s3_server())
    atexit.register(running.close)
    make_bucket(url, BUCKET)
    return url
