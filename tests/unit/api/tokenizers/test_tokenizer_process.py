from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chockstone.api.tokenizers.tokenizer_process import TokenizerCache, TokenizerProblem, compile_template, load


def test_a_plain_prompt_gets_the_special_tokens_of_the_tokenizer(model: Path) -> None:
    loaded = load(model)

    tokens = loaded.encode("rope", add_special_tokens=True)

    assert loaded.singles(tokens[:1]) == ["<|begin_of_text|>"]
    assert "".join(loaded.pieces(tokens[1:])) == "rope"


def test_messages_are_written_by_the_chat_template_once(model: Path) -> None:
    answer = TokenizerCache().answer(
        {"do": "encode_chat", "directory": str(model), "messages": [{"role": "user", "content": "Hi"}]}
    )

    assert answer["text"] == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert load(model).singles(answer["tokens"]).count("<|begin_of_text|>") == 1


def test_a_character_of_several_tokens_appears_with_its_last_token(model: Path) -> None:
    loaded = load(model)
    tokens = loaded.encode("a→b", add_special_tokens=False)

    pieces = loaded.pieces(tokens)

    assert len(pieces) == len(tokens) == 5
    assert pieces == ["a", "", "", "→", "b"]


def test_bytes_that_are_no_text_do_not_hold_back_what_follows(model: Path) -> None:
    loaded = load(model)
    broken = loaded.encode("ÿ", add_special_tokens=False)[:1] * 20  # first halves of a character

    pieces = loaded.pieces([*broken, *loaded.encode("ok", add_special_tokens=False)])

    assert "".join(pieces).endswith("ok")
    assert len(pieces) == 20 + len(loaded.encode("ok", add_special_tokens=False))


def test_a_model_without_a_tokenizer_is_explained(tmp_path: Path) -> None:
    with pytest.raises(TokenizerProblem, match=r"no tokenizer\.json"):
        load(tmp_path)

    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerProblem, match="cannot be read"):
        load(tmp_path)


def test_a_model_without_a_chat_template_takes_plain_prompts_only(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    cache = TokenizerCache()

    assert cache.answer({"do": "describe", "directory": str(model)}) == {"chat": False, "vocabulary": 512}
    with pytest.raises(TokenizerProblem, match="no chat template"):
        cache.answer({"do": "encode_chat", "directory": str(model), "messages": []})


def test_the_default_of_several_templates_is_used(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    config = json.loads((model / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    config["bos_token"] = {"content": "<s>", "lstrip": False}
    (model / "tokenizer_config.json").write_text(json.dumps(config))

    assert load(model).render([]) == "yes"
    assert load(model).special_tokens["bos_token"] == "<s>"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('alternate roles') }}",
        "{{ undefined_function() }}",
    ],
)
def test_a_template_that_misbehaves_is_refused(model: Path, template: str) -> None:
    (model / "chat_template.jinja").write_text(template)

    with pytest.raises(TokenizerProblem, match="refuses these messages"):
        load(model).render([{"role": "user", "content": "x"}])


def test_a_template_that_writes_without_end_is_stopped(model: Path) -> None:
    (model / "chat_template.jinja").write_text("{% for i in range(90000) %}{{ 'x' * 100 }}{% endfor %}")

    with pytest.raises(TokenizerProblem, match="more than 4000000 characters"):
        load(model).render([])


def test_generation_marks_and_loop_controls_are_understood() -> None:
    body = "{% if loop.index > 1 %}{% break %}{% endif %}{% generation %}{{ m | tojson }}{% endgeneration %}"
    source = "{% for m in messages %}" + body + "{% endfor %}"

    assert compile_template(source).render(messages=[{"a": "<&>"}, {}]) == '{"a": "<&>"}'


def test_the_process_answers_each_line_and_outlives_bad_ones(model: Path) -> None:
    from chockstone.api.tokenizers import tokenizer_process

    requests = [
        {"do": "encode", "directory": str(model), "text": "a"},
        {"do": "nothing", "directory": str(model)},
        {"directory": str(model)},
        {"do": "decode", "directory": str(model), "tokens": [], "singles": []},
    ]
    lines = "".join(f"{json.dumps(each)}\n" for each in requests)

    ended = subprocess.run(
        [sys.executable, "-I", tokenizer_process.__file__], input=lines, capture_output=True, text=True, timeout=60
    )

    assert ended.returncode == 0, ended.stderr
    first, second, third, fourth = map(json.loads, ended.stdout.splitlines())
    assert len(first["tokens"]) == 2
    assert "no request" in second["problem"]
    assert "failed" in third["problem"]
    assert fourth == {"pieces": [], "singles": []}
