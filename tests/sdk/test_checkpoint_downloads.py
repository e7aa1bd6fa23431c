"""Downloads: files and archives by signed URLs, whole or in pieces, whatever happens to them meanwhile."""

from __future__ import annotations

import hashlib
import io
import tarfile
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pyrage
import pytest
import tinker
from safetensors.numpy import load as load_tensors

from sdk.checkpoints import archive_of, signed_url, url_of
from sdk.making import batch, create, step
from support.live import LiveServer
from support.stores import IS_S3


def fetched(url: str) -> bytes:
    """As the ``tinker`` command fetches: no header of ours."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        body: bytes = answer.read()
        assert int(answer.headers["content-length"]) == len(body)
    return body


def test_the_files_of_an_export_are_a_peft_adapter(service: tinker.ServiceClient, rest: tinker.RestClient) -> None:
    run = create(service, rank=4)
    step(run, batch(0))
    saved = run.save_weights_external("adapter").result()

    answer = rest.get_external_weights_urls(saved.path).result()

    assert set(answer.urls) == {"adapter_config.json", "adapter_model.safetensors"}
    assert answer.expires > datetime.now(UTC) + timedelta(minutes=5)
    tensors = load_tensors(fetched(answer.urls["adapter_model.safetensors"]))
    assert all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in tensors)
    assert any(tensor.any() for name, tensor in tensors.items() if "lora_B" in name)
    assert b'"r": 4' in fetched(answer.urls["adapter_config.json"])


def test_an_encrypted_export_opens_for_its_recipients_only(
    live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    run = create(service, rank=4)
    step(run, batch(0))
    one, other, stranger = (pyrage.x25519.Identity.generate() for _ in range(3))
    recipients = [str(one.to_public()), str(other.to_public())]
    plain = run.save_weights_external("plain").result().path
    secret = run.save_weights_external("secret", age_encryption_recipients=recipients).result().path

    open_urls = rest.get_external_weights_urls(plain).result().urls
    sealed_urls = rest.get_external_weights_urls(secret).result().urls

    assert set(sealed_urls) == {f"{name}.age" for name in open_urls}
    sealed = fetched(sealed_urls["adapter_model.safetensors.age"])
    weights = fetched(open_urls["adapter_model.safetensors"])
    for identity in (one, other):
        assert pyrage.decrypt(sealed, [identity]) == weights
    with pytest.raises(pyrage.DecryptError):
        pyrage.decrypt(sealed, [stranger])
    assert weights[1000:2000] not in archive_of(live, secret).read_bytes()


def test_a_recipient_that_is_none_is_refused(service: tinker.ServiceClient) -> None:
    run = create(service)

    with pytest.raises(tinker.TinkerError, match="recipient"):
        run.save_weights_external("secret", age_encryption_recipients=["age1nobody"]).result()


@pytest.mark.parametrize("kind", ["weights", "sampler_weights", "external_weights"])
def test_the_archive_of_any_kind_is_a_tar(live: LiveServer, service: tinker.ServiceClient, kind: str) -> None:
    run = create(service)
    step(run, batch(0))
    save = {
        "weights": run.save_state,
        "sampler_weights": run.save_weights_for_sampler,
        "external_weights": run.save_weights_external,
    }[kind]
    path = save("whole").result().path

    with live.http() as http:
        answer = http.get(url_of(path, "archive"))
    body = fetched(answer.headers["location"])

    assert answer.status_code == 302
    assert answer.headers["expires"].endswith("GMT")
    assert body == archive_of(live, path).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        names = tar.getnames()
        assert all(member.isreg() for member in tar.getmembers())
    assert "checkpoint_complete" in names
    if kind != "weights":
        assert {"adapter_config.json", "adapter_model.safetensors"} <= set(names)


def test_an_interrupted_download_is_resumed(live: LiveServer, service: tinker.ServiceClient) -> None:
    path = create(service).save_state("pieces").result().path
    whole = archive_of(live, path).read_bytes()
    with live.http() as http, httpx.Client(follow_redirects=True) as plain:
        url = signed_url(http, path)
        head = plain.head(url)
        with plain.stream("GET", url) as first:
            begun = next(first.iter_bytes(10_000))[:10_000]
        rest = plain.get(
            signed_url(http, path),
            headers={"Range": f"bytes={len(begun)}-", "If-Range": head.headers["etag"]},
        )
        changed = plain.get(url, headers={"Range": "bytes=5-", "If-Range": '"another"'})
        beyond = plain.get(url, headers={"Range": f"bytes={len(whole)}-"})
        last = plain.get(url, headers={"Range": "bytes=-7"})

    assert int(head.headers["content-length"]) == len(whole)
    assert rest.status_code == 206
    assert rest.headers["content-range"] == f"bytes {len(begun)}-{len(whole) - 1}/{len(whole)}"
    assert hashlib.sha256(begun + rest.content).digest() == hashlib.sha256(whole).digest()
    if not IS_S3:  # which does not know If-Range; whoever resumes looks at the ETag
        assert (changed.status_code, changed.content) == (200, whole)
    assert beyond.status_code == 416
    assert last.content == whole[-7:]


def test_a_signed_url_reaches_nothing_else(live: LiveServer, service: tinker.ServiceClient) -> None:
    run = create(service)
    path = run.save_state("mine").result().path
    with live.http() as http, httpx.Client() as plain:
        url = signed_url(http, path)
        head, _, tail = url.partition("/downloads/")
        token, _, filename = tail.partition("/")
        body, _, mac = token.partition(".")
        altered = [
            f"{body[:-1]}{'A' if body[-1] != 'A' else 'B'}.{mac}",
            f"{body}.{mac[:-2]}{'AA' if mac[-2:] != 'AA' else 'BB'}",
            f"{body}.",
            f".{mac}",
            body,
            f"{token}=",
            "x",
        ]
        codes = [plain.get(f"{head}/downloads/{each}/{filename}").status_code for each in altered]
        renamed = plain.get(f"{head}/downloads/{token}/other.tar")

    assert all(code in (403, 404) for code in codes), codes
    assert renamed.status_code in (200, 404)  # the name is for the client's eyes only


def test_a_download_outlives_the_deletion_of_what_it_loads(
    live: LiveServer, service: tinker.ServiceClient, rest: tinker.RestClient
) -> None:
    path = create(service, rank=32).save_state("going").result().path
    archive = archive_of(live, path)
    whole = archive.read_bytes()
    with live.http() as http, httpx.Client(follow_redirects=True) as plain:
        url = signed_url(http, path)
        with plain.stream("GET", url) as download:
            pieces = download.iter_bytes(4096)
            body = next(pieces)
            rest.delete_checkpoint_from_tinker_path(path).result()
            assert not archive.exists()
            body += b"".join(pieces)
        after = plain.get(url)

    assert body == whole
    assert after.status_code == 404
    assert after.json()["detail"]


def test_a_url_that_has_expired_says_so(live: LiveServer, service: tinker.ServiceClient, tmp_path: Path) -> None:
    """Signed by the server's own secret, an hour ago."""
    from chockstone.api.signed_urls import TokenSigner

    path = create(service).save_state("late").result().path
    with live.http() as http, httpx.Client() as plain:
        url = signed_url(http, path)
        head, _, tail = url.partition("/downloads/")
        token, _, filename = tail.partition("/")
        signer = TokenSigner((live.data / "token-secret").read_bytes())
        payload = signer.read(token, now=datetime.now(UTC))
        payload.pop("exp", None)
        old = signer.sign(payload, expires_at=datetime.now(UTC) - timedelta(seconds=1))
        answer = plain.get(f"{head}/downloads/{old}/{filename}")

    assert answer.status_code in (403, 410)
    assert "expired" in answer.json()["detail"]
