from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from chockstone.cli.models.making import make_model
from chockstone.cli.models.shape import Architecture

TALK = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
RENDERED = {
    "qwen3": "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "llama": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
}


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
