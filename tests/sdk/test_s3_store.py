"""A server whose checkpoints are in a bucket: what a client sees is what it sees of a directory.

The other tests of this directory run on a bucket, too, with ``CHOCKSTONE_TEST_STORE=s3``; these are the ones
that only a bucket can answer, and enough of the rest to notice when it breaks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import httpx
import pytest
import tinker
from safetensors.numpy import load_file

from faults.crashes import OFTEN, Client, RestartedServer, assert_same, until
from sdk.checkpoints import archive_of, archives, entry, listed, signed_url, url_of
from sdk.commands import said, tinker_command
from sdk.making import batch, create, rest_client, step, train
from support.live import LiveServer
from support.loopback_s3 import ENVIRONMENT, Fault, Kind, Proxy, faulty_proxy, make_bucket, s3_server
from support.stores import BUCKET, S3Place, place_in

SCRIPT = "sft:6"
DOWN = (Fault(Kind.STATUS, 503, "SlowDown"), pytest.param(Fault(Kind.RESET), marks=pytest.mark.soak))
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")


@pytest.fixture(scope="module")
def s3() -> Iterator[Proxy]:
    with s3_server() as url, faulty_proxy(url) as proxy:
        make_bucket(url, BUCKET)
        yield proxy


@pytest.fixture(scope="module")
def server(models: dict[str, Path], s3: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home = tmp_path_factory.mktemp("bucket")
    with LiveServer(models, home, "--log-level=debug", place=place_in(s3.url)) as server:
        yield server


@pytest.fixture
def service(server: LiveServer, connect: Callable[..., tinker.ServiceClient]) -> tinker.ServiceClient:
    return connect(server)


@pytest.fixture
def rest(server: LiveServer) -> tinker.RestClient:
    return rest_client(server)


@pytest.fixture(autouse=True)
def _healed(s3: Proxy) -> Iterator[None]:
    yield
    s3.heal()


def chockstone(server: LiveServer, *words: str, code: int | None = 0) -> str:
    command = [sys.executable, "-m", "chockstone.cli", *words]
    result = subprocess.run(command, env=server.env(), capture_output=True, text=True, timeout=60)
    assert code in (None, result.returncode), result.stdout + result.stderr
    return result.stdout + result.stderr


def test_a_checkpoint_in_a_bucket_lives_as_any_other(
    server: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    run = create(service)
    train(run, 2)
    path = run.save_state("kept").result().path
    gone = run.save_state("gone").result().path
    sampled = run.save_weights_for_sampler("sampled").result().path
    expected = train(run, 2, start=2)

    resumed = service.create_training_client_from_state_with_optimizer(path)
    copied = rest.copy_weights(path, "project").result()
    rest.publish_checkpoint_from_tinker_path(path).result()
    rest.set_checkpoint_ttl_from_tinker_path(path, 3600).result()
    sampler = service.create_sampling_client(model_path=sampled)
    params = tinker.types.SamplingParams(max_tokens=4, temperature=0.0)
    tokens = sampler.sample(tinker.types.ModelInput.from_ints([1, 2, 3]), 1, params).result().sequences[0].tokens

    assert train(resumed, 2, start=2) == expected
    assert len(tokens) == 4
    assert entry(rest, path).public
    assert entry(rest, path).expires_at is not None
    for each in (gone, path):
        rest.delete_checkpoint_from_tinker_path(each).result()
    assert listed(rest, run.model_id) == {"sampler_weights/sampled"}
    assert "weights/gone" not in archives(server, run.model_id)
    again = service.create_training_client_from_state_with_optimizer(copied)
    assert train(again, 2, start=2) == expected


def test_an_archive_is_fetched_from_the_bucket_itself(
    server: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient, s3: Proxy
) -> None:
    path = create(service).save_state("fetched").result().path
    with server.http() as http, httpx.Client() as plain:
        url = signed_url(http, path)
        sent_on = plain.get(url)
        there = sent_on.headers["location"]
        whole = plain.get(url, follow_redirects=True)
        head = plain.head(url, follow_redirects=True)
        last = plain.get(url, headers={"Range": "bytes=-7"}, follow_redirects=True)
        rest.delete_checkpoint_from_tinker_path(path).result()
        gone = plain.get(url)

    assert (sent_on.status_code, sent_on.headers["cache-control"]) == (302, "no-store")
    assert there.startswith(f"{s3.url}/{BUCKET}/")
    signed = parse_qs(urlsplit(there).query)
    assert int(signed["X-Amz-Expires"][0]) <= 900
    assert signed["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
    assert whole.headers["content-type"] == "application/x-tar"
    assert 'filename="fetched.tar"' in whole.headers["content-disposition"]
    assert int(head.headers["content-length"]) == len(whole.content)
    assert (last.status_code, last.content) == (206, whole.content[-7:])
    assert gone.status_code == 404


def test_another_object_in_the_place_of_an_archive_is_not_lent(
    server: LiveServer, service: tinker.ServiceClient, s3: Proxy
) -> None:
    run = create(service)
    step(run, batch(0))
    path = run.save_state("one").result().path
    step(run, batch(1))
    other = archive_of(server, run.save_state("two").result().path)
    with server.http() as http, httpx.Client() as plain:
        url = signed_url(http, path)
        s3.requests.clear()
        assert plain.get(url).status_code == 302
        asked = [request.split()[0] for request in s3.requests]
        assert asked.count("HEAD") == 1
        assert asked.count("GET") == len(asked) - 1 <= 2, "for head and tail, which may be read together"

        archive_of(server, path).put(other.read_bytes())
        refused = plain.get(url)

    assert (refused.status_code, "location" in refused.headers) == (400, False)
    assert "another archive is in its place" in refused.text
    with pytest.raises(tinker.BadRequestError, match="another archive is in its place"):
        service.create_training_client_from_state(path)


@pytest.mark.parametrize("kind", [pytest.param("weights", marks=pytest.mark.soak), "external_weights"])
def test_the_tinker_command_downloads(
    server: LiveServer, service: tinker.ServiceClient, tmp_path: Path, kind: str
) -> None:
    run = create(service, rank=4)
    step(run, batch(0))
    path = (run.save_state if kind == "weights" else run.save_weights_external)("fetched").result().path

    said(tinker_command(server, tmp_path)("checkpoint", "download", path, "-o", str(tmp_path / "out")))

    (config,) = (tmp_path / "out").rglob("adapter_config.json")
    assert json.loads(config.read_text())["r"] == 4
    assert load_file(config.parent / "adapter_model.safetensors")


def test_our_own_commands_work_on_it(server: LiveServer, service: tinker.ServiceClient, tmp_path: Path) -> None:
    run = create(service)
    path = run.save_state("seen").result().path
    assert server.place is not None

    chockstone(server, "checkpoints", "download", path, str(tmp_path / "seen.tar"))
    storage = chockstone(server, "storage")
    verified = chockstone(server, "checkpoints", "verify", server.place.url, archive_of(server, path).name)
    doctor = chockstone(server, "doctor", "--data", str(server.data), code=None)  # others may have hurt theirs

    assert (tmp_path / "seen.tar").read_bytes() == archive_of(server, path).read_bytes()
    assert "disk" not in storage
    assert "weights/seen" in verified
    assert ": ok" in verified
    assert "weights/seen" not in doctor


def test_damage_is_found_and_told(server: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient) -> None:
    run = create(service)
    hurt, gone = (run.save_state(name).result().path for name in ("hurt", "gone"))
    archive_of(server, hurt).flip()
    archive_of(server, gone).unlink()

    with server.http() as http:
        found = [http.post(url_of(path, "verify")).json() for path in (hurt, gone)]

    assert [each["state"] for each in found] == ["damaged", "damaged"]
    assert "not in the store" in found[1]["damage"]
    with pytest.raises(tinker.BadRequestError, match="damaged"):
        service.create_training_client_from_state(hurt)


@pytest.mark.parametrize("fault", DOWN, ids=["503", "reset"])
def test_an_outage_costs_time_and_nothing_else(
    server: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient, s3: Proxy, fault: Fault
) -> None:
    run = create(service)
    step(run, batch(0))
    path = run.save_state("before").result().path
    for method in METHODS:
        s3.inject(fault, method=method)

    saving = run.save_state("during")
    train(run, 3, start=1)
    with server.http() as http:
        verified = http.post(url_of(path, "verify"))
        fetched = http.get(signed_url(http, path))
    assert listed(rest, run.model_id) == {"weights/before"}
    s3.heal()

    assert (verified.status_code, fetched.status_code) == (503, 503)
    assert "check the endpoint and the network" in verified.json()["detail"]
    assert "request failed route='GET /downloads/{token}/{filename}' status=503 " in server.log()
    resumed = service.create_training_client_from_state_with_optimizer(saving.result().path)
    assert entry(rest, path).user_metadata.get("chockstone.damage") is None
    assert train(resumed, 1, start=1)


def test_requests_that_a_save_and_a_load_take(server: LiveServer, service: tinker.ServiceClient, s3: Proxy) -> None:
    """As docs/guides/checkpoints-on-s3.md has them."""
    run = create(service)
    step(run, batch(0))
    s3.heal()
    path = run.save_state("counted").result().path
    of_save = counted(s3, "/weights/counted.")
    s3.heal()
    service.create_training_client_from_state_with_optimizer(path)
    of_load = counted(s3, "/weights/counted.")

    assert of_save == {"PUT": 1}
    assert of_load == {"HEAD": 1, "GET": 1}


def counted(s3: Proxy, part: str) -> dict[str, int]:
    """Requests for objects with that in their key, by method: other runs have theirs meanwhile."""
    methods = [request.partition(" ")[0] for request in s3.requests if part in request]
    return {method: methods.count(method) for method in dict.fromkeys(methods)}


def test_nothing_secret_is_logged(server: LiveServer) -> None:
    assert " DEBUG " in server.log()
    assert "\nTraceback" not in server.log()
    for secret in (ENVIRONMENT["AWS_SECRET_ACCESS_KEY"], "X-Amz-Signature", "Signature=", "/downloads/ey"):
        assert secret not in server.log()


@pytest.mark.soak
def test_a_killed_server_goes_on_and_leaves_no_upload(
    models: dict[str, Path], server: LiveServer, s3: Proxy, tmp_path: Path
) -> None:
    place = place_in(s3.url)
    undisturbed = Client(server, tmp_path / "undisturbed", SCRIPT).result()
    with RestartedServer(models, tmp_path / "server", *OFTEN, place=place) as restarted:
        client = Client(restarted, tmp_path / "client", SCRIPT)
        client.wait_for(12)
        restarted.hold()
        restarted.kill_both()
        until(lambda: len(restarted.deaths) == 1, "the server died")
        begin_upload(place)
        assert len(uploads(place)) == 1
        restarted.release()
        heard = client.result()

        assert uploads(place) == []
        assert_same(heard, undisturbed)
        assert set(restarted.deaths) == {-9}


def client_of(place: S3Place) -> Any:  # as boto3 has it
    return boto3.client(
        "s3",
        endpoint_url=place.endpoint,
        aws_access_key_id=ENVIRONMENT["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
        region_name=ENVIRONMENT["AWS_REGION"],
    )


def begin_upload(place: S3Place) -> None:
    """As a process that was killed in the middle of one leaves it."""
    client_of(place).create_multipart_upload(Bucket=place.bucket, Key=f"{place.prefix}/run/weights/half.1.tar")


def uploads(place: S3Place) -> list[str]:
    found = client_of(place).list_multipart_uploads(Bucket=place.bucket, Prefix=place.prefix)
    return [each["Key"] for each in found.get("Uploads", [])]


def test_a_server_without_credentials_says_so(models: dict[str, Path], s3: Proxy, tmp_path: Path) -> None:
    class Poor(LiveServer):
        def environment(self) -> dict[str, str]:
            return {name: value for name, value in super().environment().items() if "KEY" not in name}

    poor = Poor(models, tmp_path, place=place_in(s3.url))

    assert poor.launch().wait(60) == 1
    assert poor.log().startswith("chockstone: the store cannot be used: ")
    assert "there are no valid AWS credentials" in poor.log()
