"""Stores on S3 when S3 answers badly, late or not at all, and what only object stores do."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from chockstone.checkpoints.errors import (
    CheckpointExists,
    CheckpointMissing,
    InvalidName,
    StoreDenied,
    StoreError,
    StoreUnreachable,
)
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.stores import s3_bucket
from chockstone.checkpoints.stores.bucket import RetryPolicy
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.checkpoints.stores.obstore_bucket import MAX_BYTES, ObstoreBucket
from chockstone.checkpoints.stores.s3_bucket import S3Bucket
from chockstone.checkpoints.stores.s3_connection import S3Connection
from chockstone.checkpoints.stores.s3_upload import MAX_PARTS, PART_BYTES, part_bytes
from chockstone.checkpoints.stores.store import open_store
from support.loopback_s3 import ENVIRONMENT, Fault, Kind, Proxy, faulty_proxy, make_bucket, s3_server, set_environment

BUCKET = "faulty"
SMALL = 4 * PAGE
LARGE = PART_BYTES + PAGE
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
DENIED = Fault(Kind.STATUS, 403, "AccessDenied")
BROKEN = Fault(Kind.STATUS, 500, "InternalError")
BUSY = Fault(Kind.STATUS, 503, "SlowDown")

_prefixes = (f"test-{number}" for number in count())


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        make_bucket(url, BUCKET)
        yield url


@pytest.fixture(scope="module")
def shared_proxy(server: str) -> Iterator[Proxy]:
    with faulty_proxy(server) as proxy, pytest.MonkeyPatch.context() as monkeypatch:
        set_environment(monkeypatch, proxy.url)
        yield proxy


@pytest.fixture
def proxy(shared_proxy: Proxy) -> Iterator[Proxy]:
    yield shared_proxy
    shared_proxy.heal()


@pytest.fixture(scope="module")
def connection(shared_proxy: Proxy) -> S3Connection:
    return S3Connection.connect(BUCKET, retry_policy=RetryPolicy(attempts=2))


@pytest.fixture(scope="module")
def impatient(shared_proxy: Proxy) -> S3Connection:
    return S3Connection.connect(BUCKET, retry_policy=RetryPolicy(attempts=1, silence_seconds=0.5))


@pytest.fixture
def store(connection: S3Connection) -> ObjectStore:
    return ObjectStore(S3Bucket(connection), next(_prefixes))


def save(store: ObjectStore, name: str, size: int = SMALL, *, fill: bytes = b"x", overwrite: bool = False) -> None:
    sink = store.begin(name, size)
    try:
        sink.write_at(0, memoryview(fill * size))
        sink.commit(overwrite=overwrite)
    finally:
        sink.abort()


def load(store: ObjectStore, name: str) -> bytes:
    source = store.open(name)
    content = bytearray(source.size)
    source.read_into(0, memoryview(content))
    return bytes(content)


def names(store: ObjectStore) -> list[str]:
    return [entry.name for entry in store.entries()]


def uploads(connection: S3Connection, store: ObjectStore) -> list[str]:
    """Keys of unfinished uploads, asked for without the store."""
    prefix = store.url.removeprefix(f"s3://{BUCKET}/")
    pages = connection.pages("list_multipart_uploads", Prefix=prefix)
    return [upload["Key"] for page in pages for upload in page.get("Uploads", [])]


Operation = Callable[[ObjectStore], object]
OPERATIONS: dict[str, tuple[str, Operation, str]] = {
    "begin": ("POST", lambda store: store.begin("new", LARGE), "s3:PutObject"),
    "write": ("PUT", lambda store: save(store, "new", LARGE), "s3:PutObject"),
    "put": ("PUT", lambda store: save(store, "new", SMALL), "s3:PutObject"),
    "open": ("HEAD", lambda store: store.open("old"), "s3:GetObject"),
    "read": ("GET", lambda store: load(store, "old"), "s3:GetObject"),
    "stat": ("HEAD", lambda store: store.stat("old"), "s3:ListBucket"),
    "entries": ("GET", lambda store: list(store.entries()), "s3:ListBucket"),
    "delete": ("DELETE", lambda store: store.delete("old"), "s3:DeleteObject"),
    "copy": ("PUT", lambda store: store.copy("old", "new"), "s3:PutObject"),
    "sweep": ("GET", lambda store: store.sweep(), "s3:ListBucketMultipartUploads"),
}
EACH = pytest.mark.parametrize("operation", OPERATIONS)


@EACH
@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_names_the_place_and_the_permission_it_takes(
    store: ObjectStore, proxy: Proxy, operation: str, status: int
) -> None:
    save(store, "old")
    method, act, permission = OPERATIONS[operation]
    proxy.inject(Fault(Kind.STATUS, status, "AccessDenied"), method=method)

    with pytest.raises(StoreDenied) as caught:
        act(store)

    assert f"answered {status}" in str(caught.value)
    assert permission in str(caught.value)
    assert f"s3://{BUCKET}" in str(caught.value)


@EACH
@pytest.mark.parametrize(
    ("fault", "cause"),
    [(BROKEN, "500"), (BUSY, "503"), (Fault(Kind.RESET), "broke off"), (Fault(Kind.STALL), "did not answer in time")],
    ids=["500", "503", "reset", "stall"],
)
def test_a_store_in_trouble_is_unreachable_and_loses_nothing(
    store: ObjectStore, impatient: S3Connection, proxy: Proxy, operation: str, fault: Fault, cause: str
) -> None:
    save(store, "old")
    hasty = ObjectStore(S3Bucket(impatient), store.url.removeprefix(f"s3://{BUCKET}/"))
    method, act, _ = OPERATIONS[operation]
    proxy.inject(fault, method=method)

    with pytest.raises(StoreUnreachable) as caught:
        act(hasty)

    assert cause in str(caught.value)
    assert "try again" in str(caught.value)
    proxy.heal()
    assert names(store) == ["old"]
    assert load(store, "old") == b"x" * SMALL


@EACH
@pytest.mark.parametrize(
    "fault",
    [BROKEN, BUSY, Fault(Kind.RESET), Fault(Kind.SHORT_BODY)],
    ids=["500", "503", "reset", "short"],
)
def test_a_fault_that_passes_is_not_noticed(store: ObjectStore, proxy: Proxy, operation: str, fault: Fault) -> None:
    save(store, "old")
    method, act, _ = OPERATIONS[operation]
    proxy.inject(fault, method=method, times=1)

    act(store)


@EACH
def test_a_bucket_that_is_not_there_is_no_missing_checkpoint(proxy: Proxy, operation: str) -> None:
    store = ObjectStore.from_url("s3://nobody-made-this")

    with pytest.raises(StoreError, match="no bucket 's3://nobody-made-this'; create it") as caught:
        OPERATIONS[operation][1](store)

    assert not isinstance(caught.value, CheckpointMissing)


def test_bodies_that_stay_short_are_an_error_and_never_short_data(store: ObjectStore, proxy: Proxy) -> None:
    save(store, "old", LARGE)
    source = store.open("old")
    proxy.inject(Fault(Kind.SHORT_BODY), method="GET")

    with pytest.raises(StoreUnreachable, match="broke off"):
        source.read_into(0, memoryview(bytearray(LARGE)))


def test_a_server_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, "http://127.0.0.1:1")
    store = ObjectStore.from_url("s3://bucket/prefix", retry_policy=RetryPolicy(attempts=1))

    with pytest.raises(StoreUnreachable, match=r"s3://bucket/prefix/old\.tar: no connection could be made"):
        store.stat("old")


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        (Fault(Kind.STATUS, 400, "ExpiredToken"), "renew"),
        (Fault(Kind.STATUS, 403, "InvalidAccessKeyId"), "check key, secret and endpoint"),
        (Fault(Kind.STATUS, 403, "RequestTimeTooSkewed"), "clock"),
    ],
    ids=lambda value: value.code if isinstance(value, Fault) else "",
)
def test_credentials_that_do_not_work_are_a_refusal_with_advice(
    store: ObjectStore, proxy: Proxy, fault: Fault, advice: str
) -> None:
    for method in ("GET", "HEAD"):  # of which the latter has no body to say why
        proxy.inject(fault, method=method)

    for ask in (lambda: list(store.entries()), lambda: store.stat("old")):
        with pytest.raises(StoreDenied, match=advice):
            ask()


def test_a_bucket_in_another_region_is_said_to_be(store: ObjectStore, proxy: Proxy) -> None:
    save(store, "old")
    source = store.open("old")
    proxy.inject(Fault(Kind.STATUS, 301, "PermanentRedirect"), method="GET")

    with pytest.raises(StoreUnreachable, match="set AWS_REGION"):
        source.read_into(0, memoryview(bytearray(PAGE)))


@EACH
def test_no_error_shows_credentials(store: ObjectStore, proxy: Proxy, operation: str) -> None:
    save(store, "old")
    method, act, _ = OPERATIONS[operation]
    proxy.inject(DENIED, method=method)

    with pytest.raises(StoreDenied) as caught:
        act(store)

    shown = "".join(traceback.format_exception(caught.value))
    assert ENVIRONMENT["AWS_SECRET_ACCESS_KEY"] not in shown
    assert ENVIRONMENT["AWS_ACCESS_KEY_ID"] not in shown


@SIZES
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_commit_whose_answer_was_lost_is_a_commit(
    store: ObjectStore, connection: S3Connection, proxy: Proxy, size: int, overwrite: bool
) -> None:
    method, containing = ("PUT", "new.tar") if size == SMALL else ("POST", "uploadId")
    proxy.inject(Fault(Kind.LOST_ANSWER), method=method, containing=containing)

    save(store, "new", size, overwrite=overwrite)

    assert load(store, "new") == b"x" * size
    assert uploads(connection, store) == []


@SIZES
def test_a_commit_that_was_retried_after_a_lost_answer_is_not_taken_for_another(
    store: ObjectStore, proxy: Proxy, size: int
) -> None:
    method, containing = ("PUT", "new.tar") if size == SMALL else ("POST", "uploadId")
    proxy.inject(Fault(Kind.LOST_ANSWER), method=method, containing=containing, times=1)
    proxy.inject(Fault(Kind.STATUS, 412, "PreconditionFailed"), method=method, containing=containing, times=1)

    save(store, "new", size)

    assert load(store, "new") == b"x" * size


@SIZES
def test_when_nobody_can_say_what_became_of_a_commit_the_error_says_so(
    store: ObjectStore, proxy: Proxy, size: int
) -> None:
    method, containing = ("PUT", "new.tar") if size == SMALL else ("POST", "uploadId")
    proxy.inject(Fault(Kind.LOST_ANSWER), method=method, containing=containing)
    proxy.inject(BUSY, method="HEAD")

    with pytest.raises(StoreUnreachable, match="cannot say whether"):
        save(store, "new", size)


@pytest.mark.parametrize("status", [403, 500])
def test_a_commit_that_failed_leaves_no_upload(
    store: ObjectStore, connection: S3Connection, proxy: Proxy, status: int
) -> None:
    proxy.inject(Fault(Kind.STATUS, status, "Injected"), method="POST", containing="uploadId")

    with pytest.raises(StoreError, match=rf"cannot commit .*new\.tar: the store answered {status}"):
        save(store, "new", LARGE)

    assert names(store) == []
    assert uploads(connection, store) == []


def test_a_part_that_failed_fails_the_save_and_abort_discards_the_rest(
    store: ObjectStore, connection: S3Connection, proxy: Proxy
) -> None:
    proxy.inject(BROKEN, method="PUT", containing="partNumber=2")
    sink = store.begin("new", LARGE)

    with pytest.raises(StoreUnreachable, match="500"):
        sink.write_at(0, memoryview(bytes(LARGE)))
    with pytest.raises(StoreError, match="never written"):
        sink.commit(overwrite=False)
    sink.abort()

    assert names(store) == []
    assert uploads(connection, store) == []


def test_losing_a_race_leaves_no_upload(store: ObjectStore, connection: S3Connection) -> None:
    save(store, "taken")

    with pytest.raises(CheckpointExists, match=r"taken\.tar already; choose another name"):
        save(store, "taken", LARGE)

    assert uploads(connection, store) == []


@SIZES
def test_a_conflict_over_a_name_that_is_free_again_asks_to_save_again(
    store: ObjectStore, proxy: Proxy, size: int
) -> None:
    method, containing = ("PUT", "new.tar") if size == SMALL else ("POST", "uploadId")
    proxy.inject(Fault(Kind.STATUS, 409, "ConditionalRequestConflict"), method=method, containing=containing)

    with pytest.raises(StoreUnreachable, match="save it again"):
        save(store, "new", size)


def test_an_abort_that_cannot_reach_s3_says_so_in_the_log_only(
    store: ObjectStore, connection: S3Connection, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    sink = store.begin("new", LARGE)
    proxy.inject(BUSY, method="DELETE")

    with caplog.at_level(logging.WARNING):
        sink.abort()
        sink.abort()

    proxy.heal()
    assert [record.levelname for record in caplog.records if "new.tar" in record.getMessage()] == ["WARNING"]
    assert len(uploads(connection, store)) == 1
    assert len(store.sweep()) == 1


def test_parts_leave_memory_as_soon_as_they_are_full(store: ObjectStore, proxy: Proxy) -> None:
    sink = store.begin("long", 3 * PART_BYTES)
    sink.write_at(PAGE, memoryview(bytes(2 * PART_BYTES)))

    uploaded = [request for request in proxy.requests if "partNumber" in request]
    sink.abort()

    assert len(uploaded) == 1
    assert "partNumber=2" in uploaded[0]


@pytest.mark.parametrize("size", [1, PART_BYTES, MAX_PARTS * PART_BYTES, MAX_PARTS * PART_BYTES + 1, 5 * 10**12])
def test_no_archive_needs_more_parts_than_s3_takes(size: int) -> None:
    length = part_bytes(size)

    assert length >= PART_BYTES
    assert length % PAGE == 0
    assert -(-size // length) <= MAX_PARTS


@SIZES
def test_more_bytes_than_planned_are_refused(store: ObjectStore, size: int) -> None:
    sink = store.begin("new", size)

    with pytest.raises(StoreError, match=f"planned with {size} bytes"):
        sink.write_at(size, memoryview(bytes(PAGE)))
    sink.abort()


@SIZES
def test_an_archive_with_a_gap_is_not_committed(store: ObjectStore, size: int) -> None:
    sink = store.begin("gap", size)
    sink.write_at(PAGE, memoryview(bytes(size - PAGE)))

    with pytest.raises(StoreError, match="never written"):
        sink.commit(overwrite=False)
    sink.abort()

    assert names(store) == []


def test_an_archive_that_is_replaced_while_it_is_read_is_an_error(store: ObjectStore) -> None:
    save(store, "old", fill=b"a")
    source = store.open("old")
    save(store, "old", fill=b"b", overwrite=True)
    target = bytearray(PAGE)

    with pytest.raises(StoreError, match="replaced while it was being read; open it again") as caught:
        source.read_into(0, memoryview(target))

    assert not isinstance(caught.value, CheckpointMissing)
    assert target == bytes(PAGE)
    assert load(store, "old") == b"b" * SMALL


def test_an_archive_that_is_deleted_while_it_is_read_is_missing(store: ObjectStore) -> None:
    save(store, "old")
    source = store.open("old")
    store.delete("old")

    with pytest.raises(CheckpointMissing, match="deleted while it was being read"):
        source.read_into(0, memoryview(bytearray(PAGE)))


def test_a_source_cannot_be_mapped(store: ObjectStore) -> None:
    save(store, "old")

    assert store.open("old").map() is None
    assert store.free_bytes() is None


def test_a_delete_whose_answer_was_lost_counts_as_done(store: ObjectStore, proxy: Proxy) -> None:
    save(store, "old")
    proxy.inject(Fault(Kind.LOST_ANSWER), method="DELETE", times=1)

    assert store.delete("old") is True
    assert names(store) == []


def test_a_delete_of_what_was_replaced_meanwhile_deletes_the_replacement(store: ObjectStore, proxy: Proxy) -> None:
    save(store, "old")
    proxy.inject(Fault(Kind.STATUS, 412, "PreconditionFailed"), method="DELETE", times=1)

    assert store.delete("old") is True
    assert names(store) == []


def test_a_server_without_conditional_deletes_still_deletes(store: ObjectStore, proxy: Proxy) -> None:
    save(store, "old")
    proxy.inject(Fault(Kind.STATUS, 501, "NotImplemented"), method="DELETE", times=1)

    assert store.delete("old") is True
    assert names(store) == []


def test_a_copy_of_several_ranges_is_whole(
    store: ObjectStore, connection: S3Connection, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_bucket, "COPY_RANGE_BYTES", 5 * 1024**2)  # the least S3 takes
    save(store, "old", 11 * 1024**2)

    store.copy("old", "new")

    copied = [request for request in proxy.requests if "new.tar" in request and "partNumber" in request]
    assert len(copied) == 3
    assert load(store, "new") == load(store, "old")
    assert uploads(connection, store) == []


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(Kind.STATUS, 404, "NoSuchKey"), CheckpointMissing),
        (Fault(Kind.STATUS, 412, "PreconditionFailed"), StoreError),
        (BROKEN, StoreUnreachable),
    ],
    ids=["deleted", "replaced", "broken"],
)
def test_a_copy_that_fails_leaves_nothing(
    store: ObjectStore, connection: S3Connection, proxy: Proxy, fault: Fault, error: type[StoreError]
) -> None:
    save(store, "old")
    proxy.inject(fault, method="PUT", containing="partNumber")

    with pytest.raises(error, match=r"old\.tar"):
        store.copy("old", "new")

    assert names(store) == ["old"]
    assert uploads(connection, store) == []


def test_objects_of_others_are_not_listed_and_do_not_hinder(store: ObjectStore, connection: S3Connection) -> None:
    save(store, "run/ours")
    prefix = store.url.removeprefix(f"s3://{BUCKET}/")
    for key in ["notes.txt", "a b.tar", ".hidden.tar", "run//twice.tar", "run/../up.tar", "run/", "é.tar", ".tar"]:
        connection.request("put_object", Key=f"{prefix}/{key}", Body=b"theirs")
    connection.request("put_object", Key=f"{prefix}0/theirs.tar", Body=b"theirs")

    assert names(store) == ["run/ours"]
    assert [entry.name for entry in store.entries("run")] == ["run/ours"]


def test_a_store_may_be_the_whole_bucket(server: str, proxy: Proxy) -> None:
    make_bucket(server, "whole-bucket")
    store = ObjectStore.from_url("s3://whole-bucket/")

    save(store, "run/step-1")

    assert names(store) == ["run/step-1"]
    assert store.url == "s3://whole-bucket"
    assert store.sweep() == []


def test_sweep_spares_what_is_younger_than_the_grace_period_or_not_ours(
    store: ObjectStore, connection: S3Connection
) -> None:
    prefix = store.url.removeprefix(f"s3://{BUCKET}/")
    for key in [f"{prefix}/run/orphan.tar", f"{prefix}/video.mp4", f"{prefix}0/orphan.tar"]:
        connection.request("create_multipart_upload", Key=key)
    century_seconds = 100 * 365 * 86400.0  # moto says that every upload began in 2010
    patient = ObjectStore(S3Bucket(connection), prefix, grace_seconds=century_seconds)

    by_grace, by_age = patient.sweep(), store.sweep(min_age_seconds=century_seconds)
    swept = store.sweep()

    assert by_grace == by_age == []
    assert [partial.place.partition("?")[0] for partial in swept] == [f"{store.url}/run/orphan.tar"]
    assert swept[0].age_seconds > 86400
    assert uploads(connection, store) == [f"{prefix}/video.mp4", f"{prefix}0/orphan.tar"]


def test_a_dry_sweep_counts_bytes_and_removes_nothing(store: ObjectStore, connection: S3Connection) -> None:
    key = f"{store.url.removeprefix(f's3://{BUCKET}/')}/orphan.tar"
    upload = connection.request("create_multipart_upload", Key=key)["UploadId"]
    connection.request("upload_part", Key=key, UploadId=upload, PartNumber=1, Body=b"x" * 1000)

    swept = store.sweep(dry_run=True)

    assert [partial.size for partial in swept] == [1000]
    assert uploads(connection, store) == [key]


def test_an_upload_that_ended_during_a_sweep_is_not_counted(
    store: ObjectStore, connection: S3Connection, proxy: Proxy
) -> None:
    key = f"{store.url.removeprefix(f's3://{BUCKET}/')}/orphan.tar"
    connection.request("create_multipart_upload", Key=key)
    proxy.inject(Fault(Kind.STATUS, 404, "NoSuchUpload"), method="DELETE")

    assert store.sweep() == []


def test_an_upload_that_a_lifecycle_rule_discarded_is_named(store: ObjectStore, proxy: Proxy) -> None:
    proxy.inject(Fault(Kind.STATUS, 404, "NoSuchUpload"), method="POST", containing="uploadId")

    with pytest.raises(StoreError, match="lifecycle rule"):
        save(store, "new", LARGE)


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3:///prefix", "s3://a", "s3://bucket/../up", "s3://bucket/a b", "s3://bucket:80/x", "ftp://bucket"],
)
def test_urls_that_name_no_store_are_refused(url: str) -> None:
    with pytest.raises(InvalidName):
        ObjectStore.from_url(url)


@pytest.mark.parametrize("url", ["s3://key:hunter2@bucket/x", "s3://bucket/x?secret=hunter2", "s3://bucket#hunter2"])
def test_urls_with_credentials_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(InvalidName, match="environment") as caught:
        open_store(url)

    assert "hunter2" not in str(caught.value)


def test_without_credentials_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")

    with pytest.raises(StoreDenied, match="AWS_SECRET_ACCESS_KEY"):
        ObjectStore.from_url("s3://bucket")


def test_credentials_that_nobody_gives_out_are_a_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_environment(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    configuration = tmp_path / "config"
    configuration.write_text("[default]\ncredential_process = false\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(configuration))

    with pytest.raises(StoreDenied, match="CredentialRetrievalError"):
        ObjectStore.from_url("s3://bucket")


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("AWS_PROFILE", "nobody", r"nobody.*correct the AWS configuration"),
        ("AWS_ENDPOINT_URL_S3", "user:hunter2", "correct AWS_ENDPOINT_URL_S3"),
    ],
    ids=["profile", "endpoint"],
)
def test_a_wrong_aws_configuration_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, advice: str
) -> None:
    set_environment(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)

    with pytest.raises(StoreError, match=advice) as caught:
        ObjectStore.from_url("s3://bucket")

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "package"), [("s3", "boto3"), ("s3", "obstore"), ("gs", "obstore"), ("az", "obstore")]
)
def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, scheme: str, package: str
) -> None:
    for module in ["s3_bucket", "s3_connection", "s3_upload", "plain_bucket", "object_source"]:
        monkeypatch.delitem(sys.modules, f"chockstone.checkpoints.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(StoreError, match=rf"{package}.* pip install 'chockstone\[{scheme}\]'"):
        ObjectStore.from_url(f"{scheme}://bucket/prefix")


def test_an_archive_too_large_for_one_request_is_refused_before_it_is_gathered() -> None:
    store = ObjectStore(ObstoreBucket(MemoryStore(), "gs://bucket", retry_policy=RetryPolicy()))

    with pytest.raises(StoreError, match=f"{MAX_BYTES}; save there"):
        store.begin("huge", MAX_BYTES + 1)


def test_stores_on_google_and_azure_are_made_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")

    assert ObjectStore.from_url("gs://bucket/prefix").url == "gs://bucket/prefix"
    assert ObjectStore.from_url("az://bucket/prefix").url == "az://bucket/prefix"
