from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner, Result

from chockstone.cli.app import app
from chockstone.cli.models.directory import count_parameters
from chockstone.cli.models.making import ModelNotMade, make_model
from chockstone.cli.models.shape import Architecture, choose_shape, choose_vocab_size

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
TALK = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
RENDERED = {
    "qwen3": "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "llama": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
}


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["model", "make", *map(str, words)], catch_exceptions=False)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Architecture, Path]:
    directory = tmp_path_factory.mktemp("models") / request.param
    make_model(directory, architecture=request.param)
    return request.param, directory


def test_transformers_loads_it_whole(made: tuple[Architecture, Path]) -> None:
    architecture, directory = made

    model, report = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)

    assert type(model).__name__ == {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}[architecture]
    assert not any(report.values())
    assert model.dtype == torch.float32
    assert model.num_parameters() == pytest.approx(1_000_000, rel=0.1)
    assert model.num_parameters() == count_parameters(directory)


def test_it_speaks_and_its_tokenizer_can_show_every_token(made: tuple[Architecture, Path]) -> None:
    _, directory = made
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)

    prompt = tokenizer("Hello", return_tensors="pt")
    torch.manual_seed(0)
    said = model.generate(**prompt, max_new_tokens=4)

    assert torch.isfinite(model(**prompt).logits).all()
    assert said.shape[1] > prompt.input_ids.shape[1]
    assert len(tokenizer) == model.config.vocab_size == model.get_input_embeddings().num_embeddings
    assert all(tokenizer.convert_ids_to_tokens(token_id) for token_id in range(len(tokenizer)))
    assert tokenizer.eos_token_id in model.generation_config.eos_token_id


def test_the_chat_template_renders_a_talk(made: tuple[Architecture, Path]) -> None:
    architecture, directory = made
    tokenizer = AutoTokenizer.from_pretrained(directory)

    text = tokenizer.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    token_ids = tokenizer.apply_chat_template(TALK, add_generation_prompt=True, return_dict=False)

    assert text == RENDERED[architecture]
    assert tokenizer.decode(token_ids) == text
    assert token_ids.count(tokenizer.eos_token_id) == 2


def test_a_qwen_that_must_not_think_is_given_an_empty_thought(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_model(tmp_path / "m").directory)

    text = tokenizer.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True, enable_thinking=False)

    assert text == RENDERED["qwen3"] + "<think>\n\n</think>\n\n"


def test_any_text_survives_the_tokenizer(made: tuple[Architecture, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made[1])
    text = "The other thing,  12345 times!\n\tÜ 你好 🪨 \x00 .. 's"

    token_ids = tokenizer.encode(text, add_special_tokens=False)

    assert tokenizer.decode(token_ids) == text
    assert len(token_ids) < len(text.encode())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_same_seed_makes_the_same_bytes_and_another_seed_others(tmp_path: Path, architecture: Architecture) -> None:
    first, again, other = (
        contents(make_model(tmp_path / name, architecture=architecture, seed=seed).directory)
        for name, seed in (("first", 7), ("again", 7), ("other", 8))
    )

    assert first == again
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("millions", [1, 1.3, 2, 3, 4.9, 5, 8, 10, 21, 30, 49, 50, 77, 100, 140, 199, 200, 250, 300])
def test_every_size_is_met_closely_and_in_proportion(architecture: Architecture, millions: float) -> None:
    wanted = int(millions * 1e6)

    shape = choose_shape(architecture, parameters=wanted, vocab_size=choose_vocab_size(wanted))

    assert shape.parameters == pytest.approx(wanted, rel=0.03)
    assert 2 <= shape.intermediate_size / shape.hidden_size <= 4
    assert shape.heads % shape.key_heads == 0
    assert shape.vocab_size * shape.hidden_size < 0.2 * wanted


def test_a_vocabulary_can_be_as_large_as_real_ones(tmp_path: Path) -> None:
    made = make_model(tmp_path / "m", architecture="llama", parameters=10_000_000, vocab_size=20_000)

    tokenizer = AutoTokenizer.from_pretrained(made.directory)

    assert made.parameters == pytest.approx(10_000_000, rel=0.1)
    assert len(tokenizer) == 20_000
    assert len(set(tokenizer.get_vocab())) == 20_000


@pytest.mark.parametrize(
    ("vocab_size", "message"),
    [
        (200, "a vocabulary of 200 tokens cannot be made for qwen3: choose from 265"),
        (10**6, "to 262,144"),
        (50_000, "no qwen3 model has about 1,000,000 parameters and a vocabulary of 50,000"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(tmp_path: Path, vocab_size: int, message: str) -> None:
    with pytest.raises(ModelNotMade, match=message):
        make_model(tmp_path / "m", vocab_size=vocab_size)

    assert not (tmp_path / "m").exists()


def test_the_command_says_what_it_wrote_and_how_to_serve_it(tmp_path: Path) -> None:
    result = run(tmp_path / "tiny", "--architecture", "llama", "--size", "2.5M", "--vocab", "300", "--seed", "3")

    assert result.exit_code == 0
    assert "model.safetensors" in result.stdout
    assert f"{count_parameters(tmp_path / 'tiny'):,} random parameters" in result.stdout
    assert "300 tokens" in result.stdout
    assert f"chockstone serve --model tiny={tmp_path}/tiny\n" in result.stdout
    assert result.stderr == ""


def test_a_directory_that_holds_something_is_left_alone_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    refused = run(tmp_path)
    forced = run(tmp_path, "--force")

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "is not empty: it holds 'notes.txt'" in refused.stderr
    assert "--force" in refused.stderr
    assert forced.exit_code == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "config.json").exists()
    assert not list(tmp_path.glob("*.partial"))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    result = run(tmp_path / "file" / "model")

    assert result.exit_code == 2
    assert f"cannot write a model to '{tmp_path}/file/model': Not a directory" in result.stderr


@pytest.mark.parametrize("size", ["7", "0.5M", "301M", "1G", "big", ""])
def test_a_size_out_of_range_is_refused(tmp_path: Path, size: str) -> None:
    result = run(tmp_path / "m", "--size", size)

    assert result.exit_code == 2
    assert "is not a size from 1M to 300M" in result.stderr


def test_making_a_model_needs_no_torch(tmp_path: Path) -> None:
    code = f"""
import sys
from chockstone.cli.models.making import make_model
make_model({str(tmp_path / "m")!r})
print({{"torch", "transformers", "typer"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"
