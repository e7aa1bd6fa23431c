"""Exports to GGUF are read by llama.cpp itself: logits as the run computes them, and text as its tokenizer reads it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

from chockstone.backends.export.gguf.byte_level import NAMES
from chockstone.backends.export.gguf.export import GgufOptions
from support.backends.gguf_models import CASES, SCALED, VOCABULARY, Case, export, make_base, save
from support.backends.saving import TOKENS, live_logits

PYTHON = os.environ.get("CHOCKSTONE_LLAMA_CPP_PYTHON", "")
pytestmark = [
    pytest.mark.llama_cpp,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON, reason="CHOCKSTONE_LLAMA_CPP_PYTHON names no Python with llama.cpp: make llama-cpp"),
]
READER = Path(__file__).with_name("reading.py")
SPACE = "\u2581"
MARK = "\u0301"  # an accent that follows its letter
SAMPLE = """The quick brown fox jumps over 12 lazy dogs, and 3456 more; they've seen it, WE'VE not.
def read(path):\n\treturn open(path).read()  # all of it\n\n\n    if x == 10_000: pass
naïve café élan Über straße — “quotes” … 日本語 中文 한국어 мир нещо שלום مرحبا ½ Ⅻ ٣٤٥ 🚀🦙 e\u0301
"""
TEXTS = [
    *SAMPLE.splitlines(keepends=True),
    "Hello world",
    " Hello",
    "the  two   three    four     spaces",
    "I'll 'TELL you're 1 22 333 4444 55555\t\t\n \n x",
    "<|end|> and then",
    "\u00a0nbsp \u2003em",
    "!!! ---- ==== ....",
    "ZZZQQQ",
    *(f"a{' ' * count}b" for count in (3, 7, 16, 17, 33)),
]


def ask(path: Path, **request: Any) -> Any:
    """What llama.cpp finds in a file."""
    done = subprocess.run(
        [PYTHON, READER], input=json.dumps({"path": str(path), **request}), capture_output=True, text=True, timeout=200
    )
    assert not done.returncode, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", [*CASES.values(), *SCALED.values()], ids=[*CASES, *SCALED])
def test_a_file_computes_what_the_run_does(tmp_path: Path, case: Case) -> None:
    base = make_base(tmp_path / "base", case.model_type, **case.changes)
    run = save(base, tmp_path / "store", rank=case.rank, **case.flags)
    expected = live_logits(run)[0]

    export(tmp_path / "store", base.directory, tmp_path / "model.gguf", GgufOptions("f32"))

    actual = torch.tensor(ask(tmp_path / "model.gguf", tokens=TOKENS[0].tolist()))
    near = 1e-3 if case.model_type.startswith("gemma") else 2e-5  # llama.cpp looks GELU up in a table of float16
    torch.testing.assert_close(actual, expected, rtol=0, atol=near * expected.abs().max().item())


@pytest.mark.parametrize(("number_type", "near"), [("f16", 1e-2), ("bf16", 5e-2), ("q8_0", 0.2)])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text"])
def test_smaller_numbers_compute_nearly_the_same(
    tmp_path: Path, model_type: str, number_type: Any, near: float
) -> None:
    base = make_base(tmp_path / "base", model_type)
    run = save(base, tmp_path / "store")
    expected = live_logits(run)[0]

    export(tmp_path / "store", base.directory, tmp_path / "model.gguf", GgufOptions(number_type))

    actual = torch.tensor(ask(tmp_path / "model.gguf", tokens=TOKENS[0].tolist()))
    torch.testing.assert_close(actual, expected, rtol=0, atol=near * expected.abs().max().item())


def test_a_file_without_a_tokenizer_is_read(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", "qwen3")
    run = save(base, tmp_path / "store")

    export(tmp_path / "store", base.directory, tmp_path / "model.gguf", GgufOptions("f32", with_tokenizer=False))

    actual = torch.tensor(ask(tmp_path / "model.gguf", tokens=TOKENS[0].tolist()))
    torch.testing.assert_close(actual, live_logits(run)[0], rtol=0, atol=1e-3)


def train_byte_level(name: str) -> dict[str, Any]:
    """The ``tokenizer.json`` of a tokenizer with the pre-tokenizer of this name."""
    found = next(each for each, known in NAMES.items() if known == name)
    if name in ("gpt-2", "smollm"):
        digits = [pre_tokenizers.Digits(individual_digits=True)] if name == "smollm" else []
        steps = [*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        steps = [
            pre_tokenizers.Split(Regex(found.pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [
        AddedToken("<|begin|>", special=True, normalized=False),
        AddedToken("<|end|>", special=True, normalized=False),
    ]
    tokenizer.train_from_iterator(
        [SAMPLE] * 4,
        trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, special_tokens=special, show_progress=False),
    )
    tokenizer.post_processor = TemplateProcessing("<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    document["model"]["ignore_merges"] = found.ignores_merges
    return document


def train_pieces(*, adds_space: bool) -> dict[str, Any]:
    """One like Llama's second, or like Gemma's: bytes, then tokens in the order of their merges."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    trained.train_from_iterator(SAMPLE.splitlines() * 4, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    document = json.loads(trained.to_str())["model"]
    letters = sorted(token for token in document["vocab"] if len(token) == 1)
    joined = ["".join(pair) for pair in document["merges"]]
    texts = ["<unk>", "<|begin|>", "<|end|>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *joined]
    vocab = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    merges = [pair for token in dict.fromkeys(joined) for pair in halves(token, vocab)]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    replace = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if adds_space else replace
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in texts[:3]])
    tokenizer.post_processor = TemplateProcessing("<|begin|> $A", special_tokens=[("<|begin|>", 1)])
    written: dict[str, Any] = json.loads(tokenizer.to_str())
    return written


def halves(token: str, vocab: dict[str, int]) -> Iterator[tuple[str, str]]:
    for cut in range(1, len(token)):
        if token[:cut] in vocab and token[cut:] in vocab:
            yield token[:cut], token[cut:]


DOCUMENTS = {
    **{name: lambda name=name: train_byte_level(name) for name in NAMES.values()},
    "sentencepiece": lambda: train_pieces(adds_space=True),
    "sentencepiece without a first space": lambda: train_pieces(adds_space=False),
}


@pytest.mark.parametrize("make", DOCUMENTS.values(), ids=DOCUMENTS)
def test_text_is_read_as_by_the_tokenizer(tmp_path: Path, make: Any) -> None:
    document = make()
    tokenizer = Tokenizer.from_str(json.dumps(document))
    assert tokenizer.get_vocab_size() > VOCABULARY
    base = make_base(tmp_path / "base", "llama", vocab_size=tokenizer.get_vocab_size() + 5)
    (base.directory / "tokenizer.json").write_text(json.dumps(document))
    settings = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    (base.directory / "tokenizer_config.json").write_text(json.dumps(settings))
    save(base, tmp_path / "store")

    report = export(tmp_path / "store", base.directory, tmp_path / "model.gguf")

    texts = [text for text in TEXTS if not report.notes or MARK not in text]  # the notes of tekken say so
    found = dict(zip(texts, ask(tmp_path / "model.gguf", texts=texts), strict=True))
    assert found == {text: tokenizer.encode(text).ids for text in texts}


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_text_is_read_as_by_the_tokenizer_of_a_made_model(tmp_path: Path, family: str) -> None:
    base = make_base(tmp_path / "base", "llama", tokenizer=family)
    save(base, tmp_path / "store")

    export(tmp_path / "store", base.directory, tmp_path / "model.gguf")

    tokenizer = Tokenizer.from_file(str(base.directory / "tokenizer.json"))
    assert ask(tmp_path / "model.gguf", texts=TEXTS) == [tokenizer.encode(text).ids for text in TEXTS]
