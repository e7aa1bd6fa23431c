"""One S3 bucket through boto3: credentials, endpoint, and requests whose failures are ``RequestFailed``."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, Final, Self

import boto3
import botocore.loaders
import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
    SSOError,
    TokenRetrievalError,
)
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.store import S3Store

from chockstone.checkpoints.errors import StoreDenied, StoreError
from chockstone.checkpoints.stores.bucket import RequestFailed, RetryPolicy, S3Access, explained, traffic
from chockstone.checkpoints.stores.object_source import client_config, obstore_requests

_REQUEST_SECONDS: Final = 300.0  # for one range
_CONNECTIONS: Final = 32
_LONGEST_PAUSE: Final = 10.0  # between two retries
_CREDENTIAL_LIFE: Final = timedelta(minutes=10)  # boto3 renews those that live less

_NO_CREDENTIALS: Final = (CredentialRetrievalError, NoCredentialsError, SSOError, TokenRetrievalError)

log = logging.getLogger(__name__)
Answer = dict[str, Any]  # boto3 builds its answers at run time, from S3's own description of them


class S3Connection:
    """Two clients with the same endpoint, region, credentials and retry_policy. Thread-safe."""

    def __init__(self, client: Any, reader: S3Store, bucket: str, *, retry_policy: RetryPolicy) -> None:  # as Answer
        self._client = client
        self.reader = reader
        self.bucket = bucket
        self.retry_policy = retry_policy

    @classmethod
    def connect(cls, bucket: str, *, retry_policy: RetryPolicy, access: S3Access | None = None) -> Self:
        """Endpoint and credentials come from ``access``, and what it lacks from the AWS environment.

        Sends no request to S3.
        """
        access = access or S3Access()
        try:
            session = _session(access)
            region = access.region or os.environ.get("AWS_REGION") or session.region_name or "us-east-1"
            settings = _client_settings(retry_policy)
            client = session.client("s3", region_name=region, config=settings, endpoint_url=access.endpoint_url)
            client.meta.events.register("before-send.s3", _count_request)
            if (credentials := session.get_credentials()) is None:
                raise NoCredentialsError
            credentials.get_frozen_credentials()  # fetches them, where a service gives them out
        except _NO_CREDENTIALS as error:
            raise StoreDenied(
                f"cannot use s3://{bucket}: there are no valid AWS credentials ({type(error).__name__}); log in, set "
                "AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role"
            ) from error
        except BotoCoreError as error:
            raise StoreError(f"cannot use s3://{bucket}: {error}; correct the AWS configuration") from error
        except ValueError as error:
            raise StoreError(
                f"cannot use s3://{bucket}: its endpoint is no URL; correct AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL"
            ) from error
        endpoint: str = client.meta.endpoint_url
        plain_http = endpoint.startswith("http://")
        with explained(f"cannot use s3://{bucket}", bucket=bucket, permission="access"), obstore_requests():
            reader = S3Store(
                bucket,
                config={"endpoint": endpoint, "region": region},
                client_options=client_config(retry_policy, request_seconds=_REQUEST_SECONDS, allow_http=plain_http),
                retry_config={"max_retries": 0},  # a source does that, which counts them
                credential_provider=Boto3CredentialProvider(session, ttl=_CREDENTIAL_LIFE),
            )
        return cls(client, reader, bucket, retry_policy=retry_policy)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    def request(self, operation: str, **parameters: object) -> Answer:
        """Send one request for this bucket; ``RequestFailed`` unless it succeeds.

        Retries during an outage, as long as the retry policy says.
        """
        outage = _Outage(self.url, operation, self.retry_policy.outage_seconds)
        while True:
            try:
                return self.request_now(operation, **parameters)
            except RequestFailed as failure:
                outage.wait(failure)

    def request_now(self, operation: str, **parameters: object) -> Answer:
        """As ``request``, without retries during an outage."""
        with _boto_requests(), _one_answer():
            answer: Answer = getattr(self._client, operation)(Bucket=self.bucket, **parameters)
            return answer

    def pages(self, operation: str, **parameters: object) -> Iterator[Answer]:
        with _boto_requests():
            answers = iter(self._client.get_paginator(operation).paginate(Bucket=self.bucket, **parameters))
            while True:
                with _one_answer():
                    answer: Answer | None = next(answers, None)
                if answer is None:
                    return
                yield answer

    def presigned(self, operation: str, seconds: int, **parameters: object) -> str:
        """A URL that carries the right to this one request for as long, or until our credentials end."""
        with _boto_requests():
            params = {"Bucket": self.bucket, **parameters}
            url: str = self._client.generate_presigned_url(operation, Params=params, ExpiresIn=seconds)
            return url


class _Outage:
    """The retries of one request during an outage of the store."""

    def __init__(self, url: str, operation: str, seconds: float) -> None:
        self._url = url
        self._operation = operation
        self._seconds = seconds
        self._began: float | None = None
        self._pause = 1.0

    def wait(self, failure: RequestFailed) -> None:
        """Wait before the next retry; raises the failure where a retry does not help or time is up."""
        now = time.monotonic()
        if self._began is None:
            self._began = now
            if failure.is_outage and self._seconds:
                log.warning("store out of order url=%s operation=%s cause=%r", self._url, self._operation, str(failure))
        else:
            failure.was_retried = True
        if not failure.is_outage or now + self._pause > self._began + self._seconds:
            raise failure
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def _session(access: S3Access) -> boto3.session.Session:
    """A session that reads the AWS environment anew, and the description of S3 only once in a process: 0.3 s."""
    core = botocore.session.Session()
    loader = _loader(core.get_config_variable("data_path"))
    core.register_component("data_loader", loader)
    session = boto3.session.Session(access.key_id, access.secret, access.session_token, botocore_session=core)
    loader.search_paths[:] = dict.fromkeys(loader.search_paths)  # each session adds boto3's own
    return session


@cache
def _loader(data_path: str | None) -> botocore.loaders.Loader:
    return botocore.loaders.create_loader(data_path)


def _client_settings(retry_policy: RetryPolicy) -> Config:
    return Config(
        signature_version="s3v4",  # else boto3 signs URLs of some regions as S3 did before 2014
        retries={"total_max_attempts": retry_policy.attempts, "mode": "standard"},
        connect_timeout=retry_policy.connect_seconds,
        read_timeout=retry_policy.silence_seconds,
        max_pool_connections=_CONNECTIONS,
        s3={"addressing_style": "path"},  # as obstore does, and servers without wildcard DNS need
    )


def _count_request(**_: object) -> None:
    """Called by botocore, in the thread that asks, for each request and each time that one is sent again."""
    traffic.sent += 1


@contextmanager
def _one_answer() -> Iterator[None]:
    before = traffic.sent
    try:
        yield
    finally:
        traffic.repeated += max(0, traffic.sent - before - 1)


@contextmanager
def _boto_requests() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        raise _refusal(error.response) from error
    except _NO_CREDENTIALS as error:
        raise RequestFailed(f"{type(error).__name__} before it was sent", status=401, code="ExpiredToken") from error
    except (ReadTimeoutError, ConnectTimeoutError) as error:
        raise RequestFailed("it did not answer in time") from error
    except EndpointConnectionError as error:
        raise RequestFailed("no connection could be made") from error
    except BotoCoreError as error:
        raise RequestFailed(f"the request broke off with {type(error).__name__}") from error


def _refusal(response: Answer) -> RequestFailed:
    code = str(response.get("Error", {}).get("Code", ""))
    facts = response.get("ResponseMetadata", {})
    status = facts.get("HTTPStatusCode")
    answer = f"{status}" if code == str(status) else f"{status} {code}"
    retries = facts.get("RetryAttempts", 0)
    again = f" after {retries + 1} attempts" if retries else ""
    return RequestFailed(f"the store answered {answer}{again}", status=status, code=code, was_retried=retries > 0)
