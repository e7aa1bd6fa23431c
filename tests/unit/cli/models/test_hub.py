"""Models of a hub, by the real client against a hub on the loopback interface."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chockstone.cli.models.hub import ModelNotFetched, fetch, find_cached, is_complete
from chockstone.cli.models.making import make_model
from support.cli.hub import Hub, HubModel, loopback_hub

NAME = "ann/tiny"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    make_model(directory, architecture="qwen3")
    return directory


@pytest.fixture(scope="module")
def running() -> Iterator[Hub]:
    with loopback_hub() as hub:
        yield hub


@pytest.fixture
def hub(running: Hub, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """With one model, and an empty cache."""
    running.models = {NAME: HubModel.of(made)}
    running.asked.clear()
    running.answers.clear()
    running.cut_after = None
    running.use(monkeypatch, tmp_path / "cache")
    return running


def test_a_model_is_downloaded_once_and_then_found_in_the_cache(
    hub: Hub, made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert find_cached(NAME) is None

    directory = fetch(NAME)

    assert {path.name for path in directory.iterdir()} == {path.name for path in made.iterdir()}
    for path in made.iterdir():
        assert (directory / path.name).read_bytes() == path.read_bytes()
    size = sum(path.stat().st_size for path in made.iterdir())
    said = [message for message in caplog.messages if message.startswith("model download")]
    assert said[0] == f"model download started model={NAME} revision={'a' * 40} files={len(hub.downloads)} bytes={size}"
    assert said[-1].startswith(f"model downloaded model={NAME} bytes={size} seconds=")
    hub.asked.clear()
    assert find_cached(NAME) == directory
    assert hub.asked == []


def test_only_files_that_a_server_reads_are_downloaded(hub: Hub) -> None:
    hub.models[NAME].files |= {
        "pytorch_model.bin": b"a pickle",
        "modeling_tiny.py": b"import os",
        "consolidated.safetensors": b"the same again",
        "README.md": b"# Tiny",
        "onnx/config.json": b"{}",
        "original/weights.safetensors": b"more",
        "adapter_config.json": b'{"base_model_name_or_path": "../other"}',
        "adapter_model.safetensors": b"an adapter",
        "*.json": b"a name that is a pattern, too",
    }

    directory = fetch(NAME)

    assert not {"README.md", "modeling_tiny.py", "pytorch_model.bin", "consolidated.safetensors"} & set(hub.downloads)
    assert not [name for name in hub.downloads if name.startswith("adapter_")]
    assert not [path for path in directory.iterdir() if path.is_dir() or path.suffix in (".py", ".bin")]
    assert "model.safetensors" in hub.downloads


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, "only pickle files .* `save_pretrained.DIRECTORY.`"),
        ({"README.md": b"# Nothing"}, "has no weights: only weights in safetensors are downloaded"),
    ],
)
def test_a_model_without_safetensors_is_refused_before_a_byte_is_downloaded(
    hub: Hub, files: dict[str, bytes], message: str
) -> None:
    hub.models["ann/old"] = HubModel(files)

    with pytest.raises(ModelNotFetched, match=message):
        fetch("ann/old")

    assert hub.downloads == []


def test_a_download_that_was_cut_short_is_completed(hub: Hub, made: Path) -> None:
    hub.cut_after = 100_000

    directory = fetch(NAME)

    assert hub.cut_after is None, "it was cut"
    assert (directory / "model.safetensors").read_bytes() == (made / "model.safetensors").read_bytes()


def test_a_cache_with_a_part_of_a_model_has_not_the_model(hub: Hub) -> None:
    directory = fetch(NAME)
    (directory / "model.safetensors").unlink()

    assert find_cached(NAME) is None
    hub.asked.clear()
    assert fetch(NAME) == directory
    assert hub.downloads in ([], ["model.safetensors"])  # the cache may still have its bytes
    assert find_cached(NAME) == directory


def test_a_revision_is_fetched_by_its_name(hub: Hub) -> None:
    hub.models[NAME].revisions = {"main": "a" * 40, "v2": "b" * 40}

    directory = fetch(NAME, revision="v2")

    assert directory.name == "b" * 40
    assert find_cached(NAME, revision="v2") == directory
    assert find_cached(NAME) is None
    with pytest.raises(ModelNotFetched, match="has no revision 'v3'; name another"):
        fetch(NAME, revision="v3")


def test_what_only_some_users_may_read_needs_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.models[NAME].token = "hf_secret"

    with pytest.raises(ModelNotFetched, match="has no model 'ann/tiny' that you may read: .* set HF_TOKEN"):
        fetch(NAME)
    hub.models[NAME].is_gated = True
    with pytest.raises(ModelNotFetched, match="users who accepted its conditions: .* HF_TOKEN"):
        fetch(NAME)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert is_complete(fetch(NAME))


def test_a_hub_that_cannot_be_used_is_named_with_the_reason(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    with pytest.raises(ModelNotFetched, match=f"the hub {hub.url} has no model 'ann/unknown'"):
        fetch("ann/unknown")
    with pytest.raises(ModelNotFetched, match=r"'a/b/c' cannot be a name on a hub"):
        fetch("a/b/c")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFetched, match="offline mode is on: unset HF_HUB_OFFLINE"):
        fetch(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelNotFetched, match=r"the download from http://127.0.0.1:9 failed: \w*Connect\w*: "):
        fetch(NAME)


def test_a_directory_is_complete_with_configuration_tokenizer_and_all_weights(made: Path, tmp_path: Path) -> None:
    assert is_complete(made)
    assert not is_complete(tmp_path)

    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").write_bytes(b"x")
    assert not is_complete(tmp_path)
    (tmp_path / "model-2.safetensors").write_bytes(b"x")
    assert is_complete(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert not is_complete(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    assert not is_complete(tmp_path)


@pytest.mark.parametrize(
    "name", ["weights.txt", "../outside.safetensors", "/etc/a.safetensors", "sub/a.safetensors", 3]
)
def test_a_model_whose_index_names_other_files_than_its_safetensors_is_not_complete(
    hub: Hub, tmp_path: Path, name: object
) -> None:
    files = hub.models[NAME].files
    files["a.safetensors"] = files.pop("model.safetensors")
    files["weights.txt"] = b"a pickle"
    files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": "a.safetensors", "b": name}}).encode()
    snapshots = tmp_path / "cache" / "models--ann--tiny" / "snapshots"
    (snapshots / ("a" * 40) / "sub").mkdir(parents=True)
    for path in ("outside.safetensors", f"{'a' * 40}/sub/a.safetensors"):
        (snapshots / path).write_bytes(b"x")

    with pytest.raises(ModelNotFetched, match=r"are no whole model: .* \(model.safetensors.index.json "):
        fetch(NAME)

    assert find_cached(NAME) is None


def test_shards_without_their_index_are_not_complete(made: Path, tmp_path: Path) -> None:
    model = shutil.copytree(made, tmp_path / "model")
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")

    assert not is_complete(model)


@pytest.mark.parametrize("name", ["x\\..\\..\\evil.json", "x\0.json"])
def test_a_strange_file_name_is_refused(hub: Hub, name: str) -> None:
    hub.models[NAME].files[name] = b"{}"

    with pytest.raises(ModelNotFetched, match="gave a malformed answer about model 'ann/tiny': .* Check HF_ENDPOINT"):
        fetch(NAME)


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("", {"id": NAME, "sha": "../../evil", "siblings": []}),
        ("", {"id": NAME, "sha": "a" * 40, "siblings": 3}),
        ("", {"id": NAME, "sha": "a" * 40, "siblings": [{"rfilename": "model.safetensors", "size": "big"}]}),
        ("", [1]),
        ("tree", [3]),
        ("tree", {"error": "none"}),
    ],
)
def test_a_malformed_answer_of_a_hub_is_named(hub: Hub, path: str, answer: object) -> None:
    hub.answers[path] = answer

    with pytest.raises(ModelNotFetched, match="gave a malformed answer about model 'ann/tiny'"):
        fetch(NAME)


def test_the_commit_that_was_inspected_is_downloaded_even_if_its_branch_moves(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import HfApi

    ask = HfApi.model_info

    def ask_and_move(*values: Any, **options: Any) -> Any:
        answer = ask(*values, **options)
        hub.models[NAME].revisions = {"main": "b" * 40, "before": "a" * 40}
        return answer

    monkeypatch.setattr(HfApi, "model_info", ask_and_move)

    directory = fetch(NAME)

    assert directory.name == "a" * 40
    assert find_cached(NAME) == directory


def test_a_model_that_the_disk_has_no_room_for_is_refused_before_a_byte_is_downloaded(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))

    with pytest.raises(
        ModelNotFetched, match=r"it needs 4\.\d MB and .* has 1.0 MB free: 3\.\d MB are missing. .* HF_HOME"
    ):
        fetch(NAME)

    assert hub.downloads == []


def test_weights_that_another_revision_has_need_no_room(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(NAME)
    hub.models[NAME].revisions = {"main": "b" * 40}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    hub.asked.clear()

    assert fetch(NAME).name == "b" * 40

    assert hub.downloads == []
