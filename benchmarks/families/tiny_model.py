"""Tiny random models of any causal language model family of transformers, in directories, without the network.

A configuration is the default one of its class with small numbers. The numbers are chosen by the names of the fields,
and a short table has what single families want otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY: Final = 160
WORDS: Final = 120  # tokens below are words; those above belong to images, padding and the like
CONTEXT: Final = 96
_HIDDEN: Final = 64
_MOST_LAYERS: Final = 12

_LAYER_COUNTS: Final = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    *("decoder_layers", "num_decoder_layers"),
)
_GROUPS: Final = (
    (
        VOCABULARY,
        """
        vocab_size vocab_size_per_layer_input unpadded_vocab_size encoder_hash_byte_group_vocab ngram_vocab_size_base
        """,
    ),
    (
        CONTEXT,
        """
        max_position_embeddings n_positions n_ctx context_length max_seq_len max_target_positions index_topk
        original_max_position_embeddings relative_max_distance rel_extent keep_window_size
        log_scaling_n_floor floor_scale
        """,
    ),
    (
        _HIDDEN,
        """
        hidden_size n_embd d_model emb_dim embedding_size input_embedding_size output_embedding_size
        backbone_hidden_size dim_model_base mamba_d_ssm max_source_positions
        """,
    ),
    (
        96,
        """
        intermediate_size d_inner dff dim_ff decoder_ffn_dim encoder_ffn_dim feed_forward_size ffn_dim
        ffn_hidden_size intermediate_size_mlp dense_intermediate_size moe_shared_expert_intermediate_size
        shared_expert_intermediate_size shared_experts_intermediate_size shared_intermediate_size
        """,
    ),
    (32, """moe_intermediate_size expert_ffn_hidden_size router_hidden_size"""),
    (
        16,
        """
        head_dim swa_head_dim attention_head_size dim_head kv_channels kv_lora_rank q_lora_rank o_lora_rank
        qk_nope_head_dim v_head_dim index_head_dim linear_head_dim linear_key_head_dim linear_value_head_dim
        mamba_head_dim mamba_d_state ssm_state_size state_size hidden_size_per_layer_input laurel_rank adapter_rank
        gated_norm_rank d_rel hc_lowrank attention_chunk_size query_pre_attn_scalar block_size
        """,
    ),
    (
        8,
        """
        qk_rope_head_dim rotary_dim sliding_window sliding_window_size attention_window_size window_size
        local_attention local_attention_window_len chunk_size mamba_chunk_size zero_expert_num index_block_size
        mamba_num_heads num_buckets ffn_round_up_to_multiple_of
        """,
    ),
    (
        4,
        """
        num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads
        encoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads swa_num_attention_heads
        num_experts n_routed_experts num_local_experts moe_num_experts index_n_heads linear_num_heads
        linear_num_value_heads mamba_n_heads n_mamba_heads
        """,
    ),
    (
        2,
        """
        num_key_value_heads swa_num_key_value_heads num_experts_per_tok moe_topk moe_k n_group n_groups
        linear_num_key_heads o_groups encoder_layers num_encoder_layers index_topk_blocks
        """,
    ),
    (
        1,
        """
        n_shared_experts num_shared_experts moe_num_shared_experts first_k_dense_replace topk_group num_dense_layers
        """,
    ),
)
_SIZES: Final = {name: value for value, names in _GROUPS for name in names.split()}
_SPREAD: Final = {  # wide enough for logits that differ, and for attention that attends
    "initializer_range": 0.15,
    "init_std": 0.15,
    "initializer_factor": 0.15,
}
_MARKS: Final = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": VOCABULARY - 1}
_NOTHING: Final[Mapping[str, Any]] = {}
_OTHERWISE: Final[Mapping[str, Mapping[str, Any]]] = {
    "bamba": {"attn_layer_indices": [1]},
    "dots1": {"n_routed_experts": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "num_experts": 4},
    "mamba2": {"num_heads": 8},
    "nemotron": {"num_key_value_heads": 2},
    "reformer": {"axial_pos_shape": (8, 12), "axial_pos_embds_dim": (32, 32), "is_decoder": True},
}


def families() -> list[str]:
    """All causal families that the installed transformers knows, by their model type."""
    return [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name in CONFIG_MAPPING]


def class_name(family: str) -> str:
    return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family])


def make_config(family: str) -> PreTrainedConfig:
    return shrink(CONFIG_MAPPING[family], _OTHERWISE.get(family, {}))


def write_model(directory: Path, family: str, *, dtype: torch.dtype = torch.float32) -> Path:
    """Create ``directory`` with a model of random weights and a tokenizer, as save_pretrained writes them."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model: Any = AutoModelForCausalLM.from_config(make_config(family), dtype=dtype)
        _vary(model)
    model.eval().save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return directory


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="w2", bos_token="w0", eos_token="w1", model_max_length=CONTEXT
    )


def shrink(kind: type[PreTrainedConfig], otherwise: Mapping[str, Any] = _NOTHING) -> PreTrainedConfig:
    """A configuration of the class with small numbers. ``otherwise`` has single fields; a dict is for a part."""
    usual = kind()
    values: dict[str, Any] = {}
    fields = {field.name for field in dataclasses.fields(kind)}
    layers = _count_layers(usual)
    for name in sorted(fields):
        value = getattr(usual, name, None)
        if isinstance(value, PreTrainedConfig):
            part = otherwise.get(name, {})
            values[name] = shrink(type(value), part)
        elif name in otherwise:
            continue
        elif name in _LAYER_COUNTS and isinstance(value, int):
            values[name] = layers
        elif name in _SIZES and isinstance(value, int) and value:
            values[name] = _SIZES[name]
        elif name in _SPREAD and isinstance(value, float):
            values[name] = _SPREAD[name]
        elif name in _MARKS:
            values[name] = _MARKS[name]
    values |= dict(zip(_placeholders(fields, usual), range(WORDS + 1, VOCABULARY - 1), strict=False))
    values |= _per_layer(kind, usual, layers)
    if "qk_rope_head_dim" in fields and "num_key_value_heads" in values:
        values["num_key_value_heads"] = values["num_attention_heads"]  # latent attention has as many
    values |= {
        name: value for name, value in otherwise.items() if not isinstance(getattr(usual, name, None), PreTrainedConfig)
    }
    return kind(**values)


def _placeholders(fields: set[str], usual: PreTrainedConfig) -> Iterator[str]:
    """Ids of tokens that stand for images, sounds and the like."""
    for name in sorted(fields - _MARKS.keys()):
        if name.endswith(("_token_id", "_token_index")) and isinstance(getattr(usual, name, None), int):
            yield name


def _count_layers(usual: PreTrainedConfig) -> int:
    """Two, or as many as it takes to have a layer of each kind."""
    kinds = getattr(usual, "layer_types", None) or getattr(usual, "layers_block_type", None) or []
    if not isinstance(kinds, list):
        return 2
    return max(2, *(kinds.index(kind) + 1 for kind in set(kinds)), 0)


def _per_layer(kind: type[PreTrainedConfig], usual: PreTrainedConfig, layers: int) -> dict[str, Any]:
    """Lists that have an entry for each layer and are not derived from other fields."""
    counts = [getattr(usual, name) for name in _LAYER_COUNTS if isinstance(getattr(usual, name, None), int)]
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        value = getattr(usual, field.name, None)
        is_given = field.default not in (None, dataclasses.MISSING) or field.default_factory is not dataclasses.MISSING
        if is_given and isinstance(value, list | tuple) and len(value) in counts:
            found[field.name] = type(value)(value[:layers])
    return found


@torch.no_grad()
def _vary(model: torch.nn.Module) -> None:
    """Norms and biases that are not ones and zeros, so that forgetting one is noticed."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and parameter.is_floating_point() and ("norm" in name or name.endswith("bias")):
            parameter.add_(torch.empty_like(parameter).uniform_(-0.1, 0.1))
