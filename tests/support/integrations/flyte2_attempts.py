"""Attempts of one action as the open executor of Flyte 2 lays them out, on disk and on loopback S3."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from chockstone.integrations.flyte2 import Flyte2Checkpoint
from support.loopback_s3 import ENVIRONMENT

IDENTITY = {"project": "p", "domain": "d", "run": "r1", "action": "a0"}
BUCKET = "bucket"


@dataclass(frozen=True)
class Storage:
    """Where the attempts are, and a way to get at their bytes past the library."""

    base: str
    server: str = ""  # of S3; none: files

    @property
    def is_s3(self) -> bool:
        return bool(self.server)

    def dest(self, attempt: int) -> str:
        return f"{self.base}/r1/a0/{attempt}/_flytecheckpoints"

    def attempt(self, number: int, *, prev: int | None = None, **options: object) -> Flyte2Checkpoint:
        """As the platform would start it: prev is the one before, unless told otherwise."""
        before = number - 1 if prev is None else prev
        src = self.dest(before) if before >= 1 else None
        return Flyte2Checkpoint(self.dest(number), src, **{"identity": IDENTITY, **options})  # type: ignore[arg-type]

    def read(self, attempt: int, suffix: str = "") -> bytes:
        place = self.dest(attempt) + suffix
        if not self.is_s3:
            return Path(place).read_bytes()
        content: bytes = self._client().get_object(Bucket=BUCKET, Key=_key(place))["Body"].read()
        return content

    def write(self, attempt: int, content: bytes, suffix: str = "") -> None:
        place = self.dest(attempt) + suffix
        if self.is_s3:
            self._client().put_object(Bucket=BUCKET, Key=_key(place), Body=content)
            return
        os.makedirs(os.path.dirname(place), exist_ok=True)
        Path(place).write_bytes(content)

    def remove(self, attempt: int, suffix: str = "") -> None:
        place = self.dest(attempt) + suffix
        if self.is_s3:
            self._client().delete_object(Bucket=BUCKET, Key=_key(place))
            return
        os.unlink(place)

    def _client(self) -> Any:  # Any: boto3 makes it at run time
        return boto3.client(
            "s3",
            endpoint_url=self.server,
            region_name="us-east-1",
            aws_access_key_id=ENVIRONMENT["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
        )


def _key(place: str) -> str:
    return place.removeprefix(f"s3://{BUCKET}/")


def saved(storage: Storage, attempt: int, content: bytes, *, step: int) -> None:
    storage.attempt(attempt).save_sync(content, step=step)


def loaded(checkpoint: Flyte2Checkpoint) -> bytes | None:
    path = checkpoint.load_sync()
    return None if path is None else path.read_bytes()
