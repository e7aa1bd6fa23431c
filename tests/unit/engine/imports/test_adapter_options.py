from __future__ import annotations

import json
import math
from typing import Any

import pytest

from chockstone.engine.imports.adapter_options import MAX_CONFIG_BYTES, read_options
from chockstone.wire.failures import BadRequest
from support.adapters import config


def test_the_scale_is_alpha_by_rank_or_by_its_root() -> None:
    assert read_options(config(8, lora_alpha=16)).scale == 2.0
    assert read_options(config(16, lora_alpha=16, use_rslora=True)).scale == 4.0
    assert read_options(config(8, lora_alpha=16)).ignored == {
        "lora_dropout": 0.1,
        "target_modules": ["q_proj", "up_proj"],
    }


REFUSED: list[dict[str, Any]] = [
    {"peft_type": "IA3"},
    {"task_type": "SEQ_CLS"},
    {"use_dora": True},
    {"bias": "all"},
    {"lora_bias": True},
    {"rank_pattern": {"q_proj": 2}},
    {"alpha_pattern": {"q_proj": 2}},
    {"modules_to_save": ["lm_head"]},
    {"target_parameters": ["mlp.experts.gate_up_proj"]},
    {"layer_replication": [[0, 1]]},
    {"init_lora_weights": "pissa"},
    {"init_lora_weights": 1},
    {"use_qalora": True},
    {"alora_invocation_tokens": [1, 2]},
    {"some_later_option": {"a": 1}},
    {"r": 0},
    {"r": True},
    {"r": 10**6},
    {"r": 4.0},
    {"lora_alpha": math.nan},
    {"lora_alpha": math.inf},
    {"lora_alpha": -1},
    {"lora_alpha": 10**400},
    {"lora_alpha": "32"},
    {"use_rslora": 1},
]


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_an_option_that_cannot_be_honoured_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(options))):
        read_options(config(**options))


@pytest.mark.parametrize(
    "options", [{"use_dora": False}, {"modules_to_save": None}, {"some_later_option": []}], ids=str
)
def test_an_option_that_is_off_is_no_reason_to_refuse(options: dict[str, Any]) -> None:
    assert read_options(config(**options)).rank == 4


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"{" * 100_000, json.dumps({"a": " " * MAX_CONFIG_BYTES}).encode()]
)
def test_what_is_no_configuration_is_refused(content: bytes) -> None:
    with pytest.raises(BadRequest, match=r"adapter_config\.json"):
        read_options(content)
