"""Loopback: the S3 server of the tests as the endpoint of this process, and a proxy that counts requests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from unittest.mock import patch

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from support.loopback_s3 import ENVIRONMENT, Proxy, faulty_proxy, make_bucket, s3_server

BUCKET = "bench"


@dataclass(frozen=True, slots=True)
class Loopback:
    url: str
    _names: Iterator[int]

    def new_prefix(self) -> str:
        """A prefix that is not used yet."""
        return f"s3://{BUCKET}/{next(self._names):04d}"

    @contextmanager
    def counted(self) -> Iterator[Proxy]:
        """Every request of the block goes through a proxy that keeps a list; too slow to be timed."""
        with faulty_proxy(self.url) as proxy, patch.dict(os.environ, _settings(proxy.url)):
            yield proxy


@contextmanager
def loopback() -> Iterator[Loopback]:
    with s3_server() as url, patch.dict(os.environ, _settings(url)):
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
            os.environ.pop(name, None)
        make_bucket(url, BUCKET)
        yield Loopback(url, count())


def _settings(url: str) -> dict[str, str]:
    flyte = {
        "FLYTE_AWS_ENDPOINT": url,
        "FLYTE_AWS_ACCESS_KEY_ID": ENVIRONMENT["AWS_ACCESS_KEY_ID"],
        "FLYTE_AWS_SECRET_ACCESS_KEY": ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
    }
    return {**ENVIRONMENT, **flyte, "AWS_ENDPOINT_URL_S3": url}
