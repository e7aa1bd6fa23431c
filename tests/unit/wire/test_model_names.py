from __future__ import annotations

import pytest

from chockstone.wire.model_names import ModelName


@pytest.mark.parametrize(
    ("name", "base", "max_context"),
    [
        ("openai/gpt-oss-120b:peft:131072", "openai/gpt-oss-120b", 131072),
        ("tiny:v2:peft:64", "tiny:v2", 64),
        ("a:peft:1:peft:2", "a:peft:1", 2),
    ],
)
def test_a_name_may_limit_the_context(name: str, base: str, max_context: int) -> None:
    assert ModelName.parse(name) == ModelName(base, max_context)


@pytest.mark.parametrize(
    "name", ["", "Qwen/Qwen3-8B", "tiny:v2", ":peft:64", "a:peft:", "a:peft:0", "a:peft:064", "a:peft:-1", "a:peft:٣",
             "a:peft:1e3", "a:peft:9999999999", "a:peft:64\n"],
)  # fmt: skip
def test_any_other_name_stands_for_itself(name: str) -> None:
    assert ModelName.parse(name) == ModelName(name, None)
