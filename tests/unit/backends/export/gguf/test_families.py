from __future__ import annotations

from typing import Any

import pytest
from gguf import GGUFWriter
from transformers import AutoConfig

from chockstone.backends.export.gguf.families import FAMILIES, describe, find_family
from chockstone.checkpoints.errors import ExportRefused
from support.backends.gguf_models import OTHERWISE, SIZES


def make_config(model_type: str, **changes: Any) -> Any:
    return AutoConfig.for_model(model_type, **{**SIZES, **OTHERWISE.get(model_type, {}), **changes})


def written(model_type: str, **changes: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The metadata, and the notes."""
    config = make_config(model_type, **changes)
    family = find_family(config)
    writer = GGUFWriter(None, family.architecture)
    notes = describe(writer, config, family).notes
    prefix = f"{family.architecture}."
    return {key.removeprefix(prefix): value.value for key, value in writer.kv_data[0].items()}, notes


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **parameters}}


def test_a_family_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        ExportRefused, match="of type 'gpt2' cannot be exported to GGUF; types that can: llama, mistral"
    ):
        find_family(AutoConfig.for_model("gpt2"))
    with pytest.raises(ExportRefused, match="of type 'None'"):
        find_family(object())


@pytest.mark.parametrize("model_type", FAMILIES)
def test_sizes_are_written(model_type: str) -> None:
    values, notes = written(model_type)

    expected = {
        "block_count": 6 if model_type == "gemma3_text" else 2,
        "context_length": 64,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "rope.dimension_count": 16,
        "vocab_size": 300,
    }
    assert expected.items() <= values.items() and notes == ()
    assert values["attention.layer_norm_rms_epsilon"] == make_config(model_type).rms_norm_eps
    if model_type == "qwen3_moe":
        names = ("expert_count", "expert_used_count", "expert_feed_forward_length")
        assert [values[name] for name in names] == [6, 2, 32]
    if model_type == "gemma2":
        assert (values["attn_logit_softcapping"], values["final_logit_softcapping"]) == (50.0, 30.0)
    if model_type == "gemma3_text":
        assert (values["rope.freq_base"], values["rope.freq_base_swa"]) == (1_000_000.0, 10_000.0)
        assert values["attention.sliding_window"] == 8


def test_scaled_rotation_is_written() -> None:
    linear, _ = written("qwen2", **rope("linear", factor=4.0))
    yarn, _ = written("qwen3", **rope("yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=30.0))

    assert (linear["rope.scaling.type"], linear["rope.scaling.factor"]) == ("linear", 4.0)
    assert (yarn["rope.scaling.type"], yarn["rope.scaling.original_context_length"]) == ("yarn", 16)
    assert yarn["rope.scaling.yarn_beta_fast"] == 30.0 and yarn["rope.freq_base"] == 500.0


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("mistral", {"sliding_window": 32}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1}),
    ],
)
def test_a_window_that_llama_cpp_does_not_have_bounds_the_context(model_type: str, changes: dict[str, Any]) -> None:
    values, [note] = written(model_type, **changes)

    assert values["context_length"] == 32
    assert "context_length is 32, not 64" in note


@pytest.mark.parametrize(
    ("model_type", "changes", "complaint"),
    [
        ("llama", {"hidden_act": "gelu"}, "activation function 'gelu'"),
        ("qwen2", {"num_attention_heads": 2}, "not as wide as the hidden layer"),
        ("qwen3_moe", {"norm_topk_prob": False}, "norm_topk_prob"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "layers without experts"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "layers without experts"),
        ("gemma2", {"query_pre_attn_scalar": 20}, "query_pre_attn_scalar 20; it computes with 16"),
        ("gemma2", {"final_logit_softcapping": None}, "without attn_logit_softcapping and final_logit_softcapping"),
        ("gemma3_text", {"layer_types": ["full_attention"] * 6}, "not the family's usual one"),
        ("gemma3_text", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "later tokens"),
        ("llama", rope("dynamic", factor=2.0), "rotation of type 'dynamic'"),
        ("qwen2", rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=16), "rotation of type 'llama3' for architecture 'qwen2'"),
        ("qwen3", rope("yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.7), "'yarn' with 'mscale'"),
        ("llama", rope("default", partial_rotary_factor=0.5), "partial_rotary_factor"),
    ],
)  # fmt: skip
def test_what_llama_cpp_cannot_compute_is_refused(model_type: str, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ExportRefused, match=rf"llama\.cpp cannot compute .*{complaint}"):
        written(model_type, **changes)


@pytest.mark.parametrize("changes", [{"rope_parameters": None}, {"rms_norm_eps": "small"}, {"num_attention_heads": 0}])
def test_a_configuration_of_nonsense_is_refused(changes: dict[str, Any]) -> None:
    config = make_config("llama", head_dim=16)
    for name, value in changes.items():
        config.__dict__[name] = value

    with pytest.raises(ExportRefused, match=r"config\.json of the base model has values that GGUF cannot hold"):
        describe(GGUFWriter(None, "llama"), config, FAMILIES["llama"])
