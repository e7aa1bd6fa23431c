from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from chockstone.api.context import Context
from chockstone.checkpoints import Archive, open_store
from chockstone.engine.config import StorageRules
from chockstone.engine.imports import weight_imports
from support.adapters import adapter_files, matrices
from support.api.users import MODEL, User, refusal
from support.engine.fake_backend import LAYERS
from support.served import Served
from unit.api.tinker.test_checkpoints import archive_of

LORA = {"rank": 4, "train_unembed": False}


async def start(user: User, **facts: Any) -> dict[str, Any]:
    answer = await user.http.post(
        "external_weights_upload_start", json={"base_model": MODEL, "lora_config": LORA, **facts}
    )
    assert answer.status_code == 200, answer.text
    started: dict[str, Any] = answer.json()
    return started


async def put(served: Served, url: str, content: bytes, **headers: str) -> httpx.Response:
    """Without a key, as the SDK does it."""
    transport = httpx.ASGITransport(served.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return await http.put(urlsplit(url).path, content=content, headers=headers)


async def send(served: Served, started: dict[str, Any], files: dict[str, bytes]) -> None:
    for name, content in files.items():
        assert (await put(served, started["urls"][name], content)).status_code == 200


async def finish(user: User, started: dict[str, Any]) -> httpx.Response:
    return await user.http.post("external_weights_upload_finish", json={"upload_id": started["upload_id"]})


async def imported(served: Served, user: User, files: dict[str, bytes] | None = None, **facts: Any) -> dict[str, Any]:
    started = await start(user, **facts)
    await send(served, started, files or adapter_files())
    answer = await finish(user, started)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def staged(store: Path) -> list[str]:
    """Files of uploads that are on disk."""
    return sorted(path.name for path in (store.parent / "uploads").glob("*/*"))


def archives(store: Path) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in store.rglob("*.tar"))


async def test_an_adapter_becomes_a_training_checkpoint(
    served: Served, store: Path, context: Context, ann: User
) -> None:
    given = matrices()

    found = await imported(served, ann, name="start", destination_project_id="p")

    path = found["tinker_path"]
    run_id = path.split("/")[2]
    assert path == f"tinker://{run_id}/weights/start"
    assert await ann.listed(run_id) == ["weights/start"]
    info = (await ann.http.post("weights_info", json={"tinker_path": path})).json()
    assert (info["base_model"], info["lora_rank"], info["train_attn"], info["train_unembed"]) == (MODEL, 4, True, False)
    with Archive(open_store(store).open(await archive_of(context, path))) as archive:
        state = archive.state()
        tensors = archive.tensors("weights.safetensors")
        for key, numbers in given.items():
            stored = tensors[key.removeprefix("base_model.model.").removesuffix(".weight")]
            content = archive.read_range(stored.offset, stored.entry.size)
            assert np.array_equal(np.frombuffer(content, np.float32).reshape(numbers.shape), numbers)
    assert state["optimizer"] == {"steps": 0}
    receipt = found["receipt"]
    assert receipt["lora_B_multiplied_by"] == 1.0
    assert receipt["ignored_options"]["lora_dropout"] == 0.1
    assert receipt["tensors"][next(iter(given))] == ["F32", 4, 4]
    assert "moments" in receipt["lacks"]
    assert staged(store) == ["upload.json"], "the files are not kept twice"


async def test_a_finish_that_is_sent_again_gets_the_same_path(served: Served, store: Path, ann: User) -> None:
    started = await start(ann)
    await send(served, started, adapter_files())

    first, second = (await finish(ann, started)).json(), (await finish(ann, started)).json()

    assert first["tinker_path"] == second["tinker_path"]
    assert len(archives(store)) == 1


async def test_all_weights_are_imported_with_rank_0(served: Served, ann: User) -> None:
    started = await start(ann, lora_config={"rank": 0})
    assert list(started["urls"]) == ["model.safetensors"]
    content = save({f"{layer}.weight": np.ones((3, 4), np.float32) for layer in LAYERS})
    await send(served, started, {"model.safetensors": content})

    answer = await finish(ann, started)

    info = (await ann.http.post("weights_info", json={"tinker_path": answer.json()["tinker_path"]})).json()
    assert info["is_lora"] is False


@pytest.mark.parametrize(
    "files",
    [
        adapter_files(use_dora=True),
        adapter_files(8),
        adapter_files(tensors={"model.lora_A.weight": np.ones((4, 4), np.float32)}),
        {**adapter_files(), "adapter_model.safetensors": b"\x80\x02}q\x00." + b"\0" * 64},
        {**adapter_files(), "adapter_config.json": b"{"},
    ],
    ids=["dora", "rank", "layer", "pickle", "json"],
)
async def test_files_that_are_refused_leave_nothing_behind(
    served: Served, store: Path, ann: User, files: dict[str, bytes]
) -> None:
    started = await start(ann)
    await send(served, started, files)

    refusal(await finish(ann, started), 400)

    assert staged(store) == [] == archives(store)
    assert (await ann.http.get("checkpoints")).json()["checkpoints"] == []
    assert (await ann.http.get("training_runs")).json()["training_runs"] == []
    refusal(await finish(ann, started), 404)


async def test_an_upload_without_all_files_can_be_completed(served: Served, ann: User) -> None:
    started, files = await start(ann), adapter_files()
    await send(served, started, {"adapter_config.json": files["adapter_config.json"]})

    assert "adapter_model.safetensors" in refusal(await finish(ann, started), 400)

    await send(served, started, {"adapter_model.safetensors": files["adapter_model.safetensors"]})
    assert (await finish(ann, started)).status_code == 200


async def test_one_user_cannot_touch_the_upload_of_another(served: Served, store: Path, ann: User, bob: User) -> None:
    started = await start(ann)
    await send(served, started, adapter_files())

    theirs = refusal(await finish(bob, started), 404)
    nobodys = refusal(await finish(bob, {"upload_id": "0" * 32}), 404)

    assert theirs.replace(started["upload_id"], "ID") == nobodys.replace("0" * 32, "ID")
    assert (await finish(ann, started)).status_code == 200


async def test_a_url_is_good_for_its_file_alone(served: Served, ann: User) -> None:
    started = await start(ann)
    url = started["urls"]["adapter_config.json"]

    for other in ("adapter_model.safetensors", "upload.json", "..", "%2e%2e%2fupload.json"):
        answer = await put(served, url.replace("adapter_config.json", other), b"{}")
        assert answer.status_code in (401, 403, 404, 405), other
    forged = url.replace("/uploads/", "/uploads/x")
    refusal(await put(served, forged, b"{}"), 403)
    traded = url.replace("/uploads/", "/downloads/")
    transport = httpx.ASGITransport(served.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        refusal(await http.get(urlsplit(traded).path), 403)


async def test_a_file_may_be_as_large_as_the_base_model_allows(served: Served, store: Path, ann: User) -> None:
    started = await start(ann)
    url = started["urls"]["adapter_config.json"]

    async def pieces() -> Any:
        for _ in range(40):
            yield b" " * (64 << 10)

    transport = httpx.ASGITransport(served.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        declared = await http.put(urlsplit(url).path, content=b" " * (2 << 20))
        streamed = await http.put(urlsplit(url).path, content=pieces())

    refusal(declared, 413)
    refusal(streamed, 413)
    assert staged(store) == ["upload.json"]
    assert (await put(served, url, b"{}", **{"Content-Encoding": "zstd"})).status_code == 415


async def test_expired_uploads_are_gone(
    served: Served, store: Path, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_imports, "LIFETIME", timedelta(seconds=-1))
    started = await start(ann)

    refusal(await put(served, started["urls"]["adapter_config.json"], b"{}"), 410)
    refusal(await finish(ann, started), 404)


async def test_a_user_has_few_uploads_at_once_and_finished_ones_do_not_count(served: Served, ann: User) -> None:
    for _ in range(2):
        await imported(served, ann)
    for _ in range(8):
        await start(ann)

    answer = await ann.http.post("external_weights_upload_start", json={"base_model": MODEL, "lora_config": LORA})

    assert "8 uploads" in refusal(answer, 400)


async def test_what_cannot_be_imported_is_refused_at_the_start(ann: User) -> None:
    for facts in ({"base_model": "unknown"}, {"name": "../x"}, {"name": "latest"}, {"lora_config": {"rank": -1}}):
        body = {"base_model": MODEL, "lora_config": LORA, **facts}
        answer = await ann.http.post("external_weights_upload_start", json=body)
        assert answer.status_code in (400, 422), facts


class TestWithAQuota:
    @pytest.fixture
    def rules(self) -> StorageRules:
        return StorageRules(reserve_bytes=0, user_quota_bytes=8192)

    async def test_an_import_beyond_the_quota_is_refused_before_its_files_arrive(
        self, served: Served, store: Path, ann: User
    ) -> None:
        body = {"base_model": MODEL, "lora_config": {"rank": 400}}

        answer = await ann.http.post("external_weights_upload_start", json=body)

        assert "may keep" in refusal(answer, 400)
        assert staged(store) == []

    async def test_an_import_that_outgrows_the_quota_leaves_no_checkpoint(
        self, served: Served, store: Path, ann: User
    ) -> None:
        started = await start(ann)
        await send(served, started, adapter_files())

        answer = await finish(ann, started)

        assert "may keep" in refusal(answer, 400)
        assert archives(store) == []
        assert (await ann.http.get("checkpoints")).json()["checkpoints"] == []


async def test_a_receipt_is_kept_in_the_archive(served: Served, store: Path, context: Context, ann: User) -> None:
    found = await imported(served, ann)

    with Archive(open_store(store).open(await archive_of(context, found["tinker_path"]))) as archive:
        metadata = json.loads(json.dumps(archive.manifest.metadata))
    assert metadata["imported"] == found["receipt"]
    assert metadata["path"] == found["tinker_path"]
