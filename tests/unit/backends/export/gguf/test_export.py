"""Exports to GGUF are read back by transformers, which knows nothing of our code, and compute what the run does."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from gguf import GGUFReader
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from chockstone.backends.export import base_files
from chockstone.backends.export.gguf import writing
from chockstone.backends.export.gguf.export import GgufOptions
from chockstone.backends.training.base_model import BaseModel
from chockstone.checkpoints.errors import DamagedArchive, ExportRefused
from support.backends.gguf_models import CASES, LLAMA3, Case, export, make_base, save, write_tokenizer
from support.backends.saving import live_logits, logits_of

TEXTS = ["Hello there, the 123 worlds!", "  \u00e9 \u65e5\u672c\n\n\tx", "<|im_end|> then"]


class Exported(NamedTuple):
    base: BaseModel
    store: Path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A checkpoint of a Llama, for claims about files."""
    home = tmp_path_factory.mktemp("llama")
    base = make_base(home / "base", "llama", tokenizer="llama")
    save(base, home / "store")
    return Exported(base, home / "store")


def load(directory: Path, base: BaseModel | None = None) -> Any:
    """``base``: whose configuration to use, as transformers takes only a part of it from the file."""
    given = {} if base is None else {"config": AutoConfig.from_pretrained(base.directory)}
    return AutoModelForCausalLM.from_pretrained(directory, gguf_file="model.gguf", dtype=torch.float32, **given)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_file_computes_what_the_run_does(tmp_path: Path, case: Case) -> None:
    base = make_base(tmp_path / "base", case.model_type, **case.changes)
    run = save(base, tmp_path / "store", rank=case.rank, **case.flags)
    expected = live_logits(run)

    report = export(tmp_path / "store", base.directory, tmp_path / "model.gguf", GgufOptions("f32"))

    uses_own = case.model_type == "mistral"  # transformers takes the file for a Llama's
    actual = logits_of(load(tmp_path, None if uses_own else base))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    assert not torch.allclose(expected, logits_of(base.model), atol=1e-2)  # or there is nothing to see
    assert (report.number_type, report.notes) == ("f32", ())


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_tokenizer_of_a_file_reads_text_as_that_of_the_base(
    tmp_path: Path, exported: Exported, family: str
) -> None:
    base = tmp_path / "base"
    shutil.copytree(exported.base.directory, base)
    write_tokenizer(base, family)

    export(exported.store, base, tmp_path / "model.gguf")

    own = Tokenizer.from_file(str(base / "tokenizer.json"))
    read: Any = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    assert [read(text)["input_ids"] for text in TEXTS] == [own.encode(text).ids for text in TEXTS]
    assert read.chat_template == (base / "chat_template.jinja").read_text()


def test_frequencies_that_are_scaled_one_by_one_are_in_the_file(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", "llama", rope_parameters=LLAMA3)
    save(base, tmp_path / "store")

    export(tmp_path / "store", base.directory, tmp_path / "model.gguf")

    [found] = [each for each in GGUFReader(tmp_path / "model.gguf").tensors if each.name == "rope_freqs.weight"]
    plain = 10000.0 ** (-torch.arange(0, 16, 2) / 16)
    scaled = base.model.model.rotary_emb.inv_freq
    torch.testing.assert_close(plain / torch.from_numpy(found.data.copy()), scaled)
    assert (found.data[0], found.data[-1]) == (pytest.approx(1.0), pytest.approx(8.0))


@pytest.mark.parametrize(("dtype", "number_type"), [(torch.bfloat16, "bf16"), (torch.float16, "f16")])
def test_the_numbers_have_the_type_of_the_base(tmp_path: Path, dtype: torch.dtype, number_type: str) -> None:
    base = make_base(tmp_path / "base", "qwen3")
    base.model.to(dtype).save_pretrained(base.directory)
    base.model.float()
    run = save(base, tmp_path / "store")

    report = export(tmp_path / "store", base.directory, tmp_path / "model.gguf")

    kinds = {each.name: each.tensor_type.name.lower() for each in GGUFReader(tmp_path / "model.gguf").tensors}
    assert report.number_type == number_type
    assert kinds["blk.0.attn_q.weight"] == kinds["token_embd.weight"] == number_type
    assert kinds["blk.0.attn_norm.weight"] == kinds["blk.1.attn_k_norm.weight"] == "f32"
    torch.testing.assert_close(logits_of(load(tmp_path, base)), live_logits(run), rtol=0, atol=0.5)


def test_a_quantised_file_is_near_the_run(tmp_path: Path, exported: Exported) -> None:
    report = export(exported.store, exported.base.directory, tmp_path / "model.gguf", GgufOptions("q8_0"))
    export(exported.store, exported.base.directory, tmp_path / "full.gguf", GgufOptions("f32"))

    small, full = (
        {each.name: each for each in GGUFReader(tmp_path / name).tensors} for name in ("model.gguf", "full.gguf")
    )
    assert small.keys() == full.keys() and report.size_bytes < 0.4 * (tmp_path / "full.gguf").stat().st_size
    for name, tensor in small.items():
        exact = torch.from_numpy(full[name].data.copy())
        if exact.dim() == 1:
            assert tensor.tensor_type.name == "F32"
            continue
        assert tensor.tensor_type.name == "Q8_0"
        blocks = torch.from_numpy(tensor.data.copy()).view(-1, 34)
        scales = blocks[:, :2].contiguous().view(torch.float16).float()
        numbers = (blocks[:, 2:].view(torch.int8).float() * scales).view(exact.shape)
        step = exact.view(-1, 32).abs().amax(1, keepdim=True) / 127
        assert ((numbers - exact).view(-1, 32).abs() <= 0.57 * step).all(), (
            name
        )  # a half, and the rounding of the scale


def test_rows_that_are_no_multiple_of_a_block_are_not_quantised(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", "llama", intermediate_size=80)
    save(base, tmp_path / "store")

    report = export(tmp_path / "store", base.directory, tmp_path / "model.gguf", GgufOptions("q8_0"))

    kinds = {each.name: each.tensor_type.name for each in GGUFReader(tmp_path / "model.gguf").tensors}
    assert kinds["blk.0.ffn_down.weight"] == "F16" and kinds["blk.0.ffn_up.weight"] == "Q8_0"
    assert report.notes == (
        "2 tensors are of type f16, as their rows are no multiple of the 32 numbers of a q8_0 block",
    )


def test_pieces_and_experts_of_one_tensor_or_of_many_give_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_base(tmp_path / "base", "qwen3_moe")
    save(base, tmp_path / "store", train_mlp=False)
    export(tmp_path / "store", base.directory, tmp_path / "one.gguf")
    path = base.directory / "model.safetensors"
    tensors = load_file(path)
    by_name = {**tensors, **base.model.state_dict()}
    fused = {name: by_name[name].contiguous() for name in base.model.state_dict()}
    assert len(fused) < len(tensors)  # experts were single ones
    path.unlink()
    save_file(fused, path, metadata={"format": "pt"})
    monkeypatch.setattr(base_files, "PIECE_BYTES", 1000)
    monkeypatch.setattr(writing, "_PIECE_NUMBERS", 200)

    export(tmp_path / "store", base.directory, tmp_path / "two.gguf")

    one, two = (GGUFReader(tmp_path / name).tensors for name in ("one.gguf", "two.gguf"))
    assert [each.name for each in one] == [each.name for each in two]
    for left, right in zip(one, two, strict=True):
        tolerance = 0.0 if "_exps" in left.name else 1e-6  # the others are sums, which smaller pieces round otherwise
        torch.testing.assert_close(
            torch.from_numpy(left.data.copy()), torch.from_numpy(right.data.copy()), rtol=0, atol=tolerance
        )


def test_a_model_without_a_tokenizer_can_be_exported(tmp_path: Path, exported: Exported) -> None:
    (tmp_path / "base").mkdir()
    for name in ("config.json", "model.safetensors"):
        os.link(exported.base.directory / name, tmp_path / "base" / name)

    with pytest.raises(ExportRefused, match="--no-tokenizer exports the model without a tokenizer"):
        export(exported.store, tmp_path / "base", tmp_path / "model.gguf")
    export(exported.store, tmp_path / "base", tmp_path / "model.gguf", GgufOptions(with_tokenizer=False))

    reader = GGUFReader(tmp_path / "model.gguf")
    assert str(reader.get_field("tokenizer.ggml.model").contents()) == "none"  # type: ignore[union-attr]
    assert load(tmp_path).config.vocab_size == 300


def test_progress_counts_what_is_written_and_read_back(tmp_path: Path, exported: Exported) -> None:
    seen: list[tuple[str, int, int]] = []

    @contextmanager
    def progress(what: str, total_bytes: int) -> Iterator[Any]:
        counts: list[int] = []
        yield counts.append
        seen.append((what, total_bytes, sum(counts)))

    export(exported.store, exported.base.directory, tmp_path / "model.gguf", progress=progress)

    total_bytes = sum(each.n_bytes for each in GGUFReader(tmp_path / "model.gguf").tensors)
    assert seen == [("writing", total_bytes, total_bytes), ("reading back", total_bytes, total_bytes)]


@pytest.mark.parametrize("phase", ["writing", "reading back"])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, exported: Exported, phase: str) -> None:
    @contextmanager
    def progress(what: str, _: int) -> Iterator[Any]:
        def count(_: int) -> None:
            if what == phase:
                raise KeyboardInterrupt

        yield count

    with pytest.raises(KeyboardInterrupt):
        export(exported.store, exported.base.directory, tmp_path / "model.gguf", progress=progress)

    assert os.listdir(tmp_path) == []


def test_a_file_that_is_not_read_back_as_it_was_written_does_not_appear(
    tmp_path: Path, exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = writing.check_file

    def damage_and_check(path: Path, *arguments: Any, **more: Any) -> None:
        with open(path, "r+b") as file:
            file.seek(-1000, os.SEEK_END)
            file.write(bytes(10))
        check(path, *arguments, **more)

    monkeypatch.setattr("chockstone.backends.export.gguf.export.check_file", damage_and_check)

    with pytest.raises(ExportRefused, match="was not read back as it was written: tensor 'output.weight'"):
        export(exported.store, exported.base.directory, tmp_path / "model.gguf")

    assert os.listdir(tmp_path) == []


def test_damage_of_the_checkpoint_leaves_nothing_behind(tmp_path: Path, exported: Exported) -> None:
    content = bytearray((exported.store / "one.tar").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "one.tar").write_bytes(content)
    (tmp_path / "out").mkdir()

    with pytest.raises(DamagedArchive):
        export(tmp_path / "store", exported.base.directory, tmp_path / "out" / "model.gguf")

    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("taken.gguf", "exists already"),
        ("model.bin", "does not end in '.gguf'"),
        ("nowhere/model.gguf", "there is no directory"),
    ],
)
def test_a_target_that_cannot_be_made_is_refused(
    tmp_path: Path, exported: Exported, target: str, complaint: str
) -> None:
    (tmp_path / "taken.gguf").write_text("mine")

    with pytest.raises(ExportRefused, match=complaint):
        export(exported.store, exported.base.directory, tmp_path / target)

    assert os.listdir(tmp_path) == ["taken.gguf"] and (tmp_path / "taken.gguf").read_text() == "mine"


def test_an_index_does_not_lead_out_of_the_base(tmp_path: Path, exported: Exported) -> None:
    base = tmp_path / "base"
    base.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        os.link(exported.base.directory / name, base / name)
    os.link(exported.base.directory / "model.safetensors", tmp_path / "outside.safetensors")
    names = dict.fromkeys(load_file(tmp_path / "outside.safetensors"), "../outside.safetensors")
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))

    with pytest.raises(ExportRefused, match=r"the base model has no file .*base/outside\.safetensors'"):
        export(exported.store, base, tmp_path / "model.gguf")


def test_the_name_of_the_base_is_printable_in_the_file(tmp_path: Path, exported: Exported) -> None:
    base = tmp_path / "mist\x1b[31mral\n"
    base.mkdir()
    for path in exported.base.directory.iterdir():
        os.link(path, base / path.name)

    export(exported.store, base, tmp_path / "model.gguf")

    field = GGUFReader(tmp_path / "model.gguf").get_field("general.name")
    assert field is not None and field.contents() == "mist[31mral-merged"
