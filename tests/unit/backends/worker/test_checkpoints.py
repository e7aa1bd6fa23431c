from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyrage
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from chockstone.backends.export.encryption import parse_recipients
from chockstone.backends.training.base_model import load_base_model
from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.saved_state import saved_weights
from chockstone.backends.worker import checkpoints as library_module
from chockstone.backends.worker.sampler_weights import read_weights
from chockstone.checkpoints import Admission, Checkpointer, verify_archive
from chockstone.checkpoints.errors import (
    CheckpointError,
    ForeignArchive,
    StoreDenied,
    StoreFull,
    StoreUnreachable,
    UnsupportedArchive,
)
from chockstone.checkpoints.restoring.export import export_members
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import Sink
from chockstone.sampling.model import SampledModel
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure
from support.backends.saving import (
    Desk,
    assert_same_logits,
    live_logits,
    logits_of,
    make_base,
    make_mixture,
    make_run,
    open_desk,
)
from support.tiny_models import apply, datum

OWN = {"state.json"}  # what every archive has besides the kind's files
TOKENIZER = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with open_desk(tmp_path / "store") as desk:
        yield desk


def members(desk: Desk, archive: str) -> set[str]:
    with desk.open(archive) as opened:
        verify_archive(opened)
        return set(opened.members) - OWN


@pytest.mark.parametrize(
    ("kind", "rank", "expected"),
    [
        ("weights", 4, {"weights.safetensors", "gradient.safetensors", "checkpoint_complete"}),
        ("sampler_weights", 4, {"adapter_model.safetensors", "adapter_config.json", "checkpoint_complete"}),
        ("external_weights", 4, {"adapter_model.safetensors", "adapter_config.json", "checkpoint_complete"}),
        ("sampler_weights", 0, {"model.safetensors", "config.json", "checkpoint_complete"}),
        ("external_weights", 0, {"model.safetensors", "config.json", "checkpoint_complete"} | TOKENIZER),
    ],
)
def test_each_kind_of_archive_has_its_files(
    tmp_path: Path, desk: Desk, kind: str, rank: int, expected: set[str]
) -> None:
    run = make_run(make_base(tmp_path / "base"), rank=rank)
    apply(run, datum(5))

    size_bytes = desk.save(run, "one", kind=kind)

    assert members(desk, "one") == expected
    assert size_bytes == (desk.store / "one.tar").stat().st_size
    with desk.open("one") as archive:
        assert archive.read("checkpoint_complete") == b""


def test_a_kind_that_there_is_not_is_refused_and_the_room_is_free_again(tmp_path: Path, desk: Desk) -> None:
    run = make_run(make_base(tmp_path / "base"))

    for _ in range(3):
        with pytest.raises(ServerFailure, match="no checkpoints of kind 'other'"):
            desk.save(run, "one", kind="other")

    desk.save(run, "one", kind="weights")


@pytest.mark.parametrize("kind", ["sampler_weights", "external_weights"])
@pytest.mark.parametrize("rank", [4, 0])
def test_what_is_saved_is_the_run_of_that_moment(tmp_path: Path, desk: Desk, rank: int, kind: str) -> None:
    base = make_base(tmp_path / "base")
    run = make_run(base, rank=rank)
    before = {name: weight.clone() for name, weight in run.state()["weights"].items()}

    desk.wait(desk.checkpoints.room())
    saving = desk.checkpoints.save(run, "one", kind=kind, metadata={}, ttl_seconds=None)
    apply(run, datum(9))
    run.optim_step(OptimStep(learning_rate=0.1))
    desk.wait(saving)

    state = desk.wait(desk.checkpoints.load("one"))
    tensors = state["adapter_model"] if rank else state["model"]
    names = {f"base_model.model.{name}.weight" if rank else name: name for name in before}
    assert tensors.keys() == names.keys()
    assert all(torch.equal(tensors[saved], before[name]) for saved, name in names.items())
    weights = read_weights(state, base, SampledModel(base.model, base.tokenizer, max_context=64))
    assert (weights.adapter is None) == (rank == 0)


def test_a_sampler_archive_from_before_the_marker_is_still_read(tmp_path: Path, desk: Desk) -> None:
    base = make_base(tmp_path / "base")
    run = make_run(base)
    config, tensors = run.peft_files()
    with Checkpointer(desk.store) as checkpointer:
        state = {"run": {"spec": run.spec.to_json()}, "adapter_model": tensors}
        checkpointer.save(state, name="old", kind="sampler_weights", files={"adapter_config.json": config}).result()

    sampled = SampledModel(base.model, base.tokenizer, max_context=64)
    weights = read_weights(desk.wait(desk.checkpoints.load("old")), base, sampled)

    assert weights.adapter is not None and weights.adapter.layers.keys() == base.layers.keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_transformers_loads_an_exported_model(
    tmp_path: Path, desk: Desk, architecture: str, tied: bool, dtype: torch.dtype
) -> None:
    run = make_run(make_base(tmp_path / "base", architecture, tied=tied, dtype=dtype), rank=0)
    desk.save(run, "one", kind="external_weights")
    with desk.open("one") as archive:
        export_members(archive, tmp_path / "files")

    model, loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "files", output_loading_info=True)

    assert not any(loaded[which] for which in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == dtype
    assert_same_logits(logits_of(model), live_logits(run), tolerance=1e-4 if dtype == torch.float32 else 1e-2)
    assert AutoTokenizer.from_pretrained(tmp_path / "files").decode([3, 4]) == "w3 w4"


def test_a_model_trained_in_another_type_than_its_files_is_exported_in_that_type(tmp_path: Path, desk: Desk) -> None:
    make_base(tmp_path / "base", dtype=torch.bfloat16)
    run = make_run(load_base_model("tiny", tmp_path / "base", dtype="float32"), rank=0)
    desk.save(run, "one", kind="external_weights")
    with desk.open("one") as archive:
        export_members(archive, tmp_path / "files")

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "files")

    assert model.dtype == torch.float32
    assert_same_logits(logits_of(model), live_logits(run))


def test_a_model_that_is_named_otherwise_in_memory_than_in_its_files_is_exported(tmp_path: Path, desk: Desk) -> None:
    make_mixture(tmp_path / "base")
    run = make_run(load_base_model("tiny", tmp_path / "base"), rank=0)
    desk.save(run, "one", kind="external_weights")
    with desk.open("one") as archive:
        export_members(archive, tmp_path / "files")

    assert_same_logits(logits_of(AutoModelForCausalLM.from_pretrained(tmp_path / "files")), live_logits(run))


@pytest.mark.parametrize("rank", [4, 0])
def test_an_encrypted_export_holds_the_same_files_and_no_plaintext(tmp_path: Path, desk: Desk, rank: int) -> None:
    run = make_run(make_base(tmp_path / "base"), rank=rank)
    ann, bob = pyrage.x25519.Identity.generate(), pyrage.x25519.Identity.generate()
    recipients = parse_recipients([str(ann.to_public()), str(bob.to_public())])

    desk.save(run, "plain", kind="external_weights")
    desk.save(run, "sealed", kind="external_weights", recipients=recipients)

    plain = members(desk, "plain") - {"checkpoint_complete"}
    assert members(desk, "sealed") == {f"{name}.age" for name in plain} | {"checkpoint_complete"}
    raw = (desk.store / "sealed.tar").read_bytes()
    with desk.open("plain") as expected, desk.open("sealed") as sealed:
        for name in plain:
            content = expected.read(name)
            for identity in (ann, bob):
                assert pyrage.decrypt(sealed.read(f"{name}.age"), [identity]) == content
            assert content[:200] not in raw and content[-200:] not in raw
        with pytest.raises(pyrage.DecryptError):
            pyrage.decrypt(sealed.read("config.json.age" if rank == 0 else "adapter_config.json.age"), [other()])
    assert b"self_attn" not in raw


def other() -> Any:
    return pyrage.x25519.Identity.generate()


def test_encryption_runs_beside_the_compute_thread_on_a_copy(
    tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(make_base(tmp_path / "base"))
    desk.save(run, "plain", kind="external_weights")
    identity = other()
    may_go_on = threading.Event()
    threads: list[threading.Thread] = []
    seal = library_module.encrypt_files

    def held(*args: Any) -> dict[str, bytes]:
        threads.append(threading.current_thread())
        assert may_go_on.wait(30)
        return seal(*args)

    monkeypatch.setattr(library_module, "encrypt_files", held)
    recipients = parse_recipients([str(identity.to_public())])
    desk.wait(desk.checkpoints.room())
    saving = desk.checkpoints.save(
        run, "sealed", kind="external_weights", metadata={}, ttl_seconds=None, recipients=recipients
    )
    apply(run, datum(9))
    run.optim_step(OptimStep(learning_rate=0.1))
    may_go_on.set()
    desk.wait(saving)

    assert threads[0] is not threading.current_thread()
    with desk.open("plain") as plain, desk.open("sealed") as sealed:
        decrypted = pyrage.decrypt(sealed.read("adapter_model.safetensors.age"), [identity])
        assert decrypted == plain.read("adapter_model.safetensors")


def test_an_encrypted_export_cannot_be_sampled_from(tmp_path: Path, desk: Desk) -> None:
    for rank in (4, 0):
        base = make_base(tmp_path / f"base-{rank}")
        recipients = parse_recipients([str(other().to_public())])
        desk.save(make_run(base, rank=rank), f"sealed-{rank}", kind="external_weights", recipients=recipients)
        state = desk.wait(desk.checkpoints.load(f"sealed-{rank}"))

        with pytest.raises(BadRequest, match="encrypted"):
            read_weights(state, base, SampledModel(base.model, base.tokenizer, max_context=64))


def test_a_state_without_the_marker_is_trained_on_from(tmp_path: Path, desk: Desk) -> None:
    run = make_run(make_base(tmp_path / "base"))
    with Checkpointer(desk.store) as checkpointer:
        checkpointer.save(run.state(), name="old", kind="weights").result()
    desk.save(run, "new", kind="weights")

    old, new = (desk.wait(desk.checkpoints.load(archive)) for archive in ("old", "new"))

    assert members(desk, "new") - members(desk, "old") == {"checkpoint_complete"}
    assert old.keys() == new.keys() == run.state().keys()
    for state in (old, new):
        saved_weights(state, run.spec, run._weights.parameters.shapes)


def test_an_export_cannot_be_trained_on_from(tmp_path: Path, desk: Desk) -> None:
    run = make_run(make_base(tmp_path / "base"))
    desk.save(run, "one", kind="external_weights")

    with pytest.raises(BadRequest, match="holds no training state"):
        saved_weights(desk.wait(desk.checkpoints.load("one")), run.spec, run._weights.parameters.shapes)


KINDS = ["weights", "sampler_weights", "external_weights", "encrypted"]


def options_of(kind: str) -> dict[str, Any]:
    if kind != "encrypted":
        return {"kind": kind}
    return {"kind": "external_weights", "recipients": parse_recipients([str(other().to_public())])}


@pytest.mark.parametrize("kind", KINDS)
def test_a_save_beyond_its_allowance_is_refused_before_the_first_byte(
    tmp_path: Path, desk: Desk, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(make_base(tmp_path / "base"))
    needed = desk.save(run, "one", **options_of(kind))
    begun: list[str] = []
    begin = FileStore.begin
    monkeypatch.setattr(FileStore, "begin", lambda store, name, size: begun.append(name) or begin(store, name, size))

    refusal = failure(lambda: desk.save(run, "two", **options_of(kind), admission=Admission(allowance_bytes=1000)))

    assert isinstance(refusal, BadRequest) and refusal.code == "no_room"
    assert "its allowance is 1000" in str(refusal)
    assert kind == "encrypted" or f"needs {needed} bytes" in str(refusal)  # each encryption has a length of its own
    assert begun == [] and sorted(os.listdir(desk.store)) == [".partial", "one.tar"]
    desk.save(run, "two", **options_of(kind), admission=Admission(allowance_bytes=needed + 4096))


def test_the_reserve_of_the_disk_is_left_alone(tmp_path: Path, desk: Desk) -> None:
    run = make_run(make_base(tmp_path / "base"))

    refusal = failure(lambda: desk.save(run, "one", kind="weights", admission=Admission(reserve_bytes=1 << 60)))

    assert isinstance(refusal, BadRequest) and refusal.code == "no_room"
    assert "bytes and file://" in str(refusal) and f"{1 << 60} are reserved" in str(refusal)
    assert "allowance" not in str(refusal)


def test_a_full_disk_is_told_with_the_bytes_it_takes(
    tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(make_base(tmp_path / "base"))
    needed = desk.save(run, "one", kind="weights")

    def begin(store: FileStore, name: str, size: int) -> Sink:
        raise StoreFull("cannot write: the disk is full; free space")

    monkeypatch.setattr(FileStore, "begin", begin)
    refusal = failure(lambda: desk.save(run, "two", kind="weights"))

    assert isinstance(refusal, BadRequest) and refusal.code == "no_room"
    assert f"needs {needed} bytes" in str(refusal) and "the disk is full; free space" in str(refusal)


def test_a_refused_save_leaves_room_for_others(tmp_path: Path, desk: Desk) -> None:
    run = make_run(make_base(tmp_path / "base"))

    for kind in KINDS * 2:
        failure(lambda kind=kind: desk.save(run, "one", **options_of(kind), admission=Admission(allowance_bytes=0)))  # type: ignore[misc]

    desk.save(run, "one", kind="weights")


def test_what_cannot_be_loaded_says_whether_it_is_damaged_or_missing(tmp_path: Path, desk: Desk) -> None:
    desk.save(make_run(make_base(tmp_path / "base")), "one", kind="weights")
    path = desk.store / "one.tar"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (desk.store / "other.tar").write_bytes(b"\0" * 100_000)

    outcomes = {name: failure(lambda name=name: load(desk, name)) for name in ("one", "other", "gone")}  # type: ignore[misc]

    assert {name: error.code for name, error in outcomes.items()} == {
        "one": "damaged",
        "other": "damaged",
        "gone": "missing",
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnreachable("503"), "unreachable"),
        (StoreDenied("403"), "denied"),
        (UnsupportedArchive("version 9"), "newer"),
        (ForeignArchive("a dataset"), "damaged"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_load_that_fails_says_whether_it_may_do_another_time(
    error: CheckpointError, code: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(store: FileStore, name: str) -> object:
        raise error

    monkeypatch.setattr(FileStore, "open", fail)

    refused = failure(lambda: load(desk, "any"))

    assert (refused.code, refused.category) == (code, "server")


def load(desk: Desk, archive: str) -> object:
    return desk.wait(desk.checkpoints.load(archive))


def test_an_archive_is_removed_once_its_save_has_ended(
    tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(make_base(tmp_path / "base"))
    may_go_on = threading.Event()
    seal = library_module.encrypt_files
    monkeypatch.setattr(library_module, "encrypt_files", lambda *args: may_go_on.wait(30) and seal(*args))
    desk.wait(desk.checkpoints.room())
    saving = desk.checkpoints.save(run, "one", metadata={}, ttl_seconds=None, **options_of("encrypted"))

    removing = desk.checkpoints.remove("one")
    assert not removing.done()
    may_go_on.set()

    assert desk.wait(removing) is True
    desk.wait(saving)
    assert not (desk.store / "one.tar").exists()


def failure(call: Callable[[], object]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call()
    return caught.value
