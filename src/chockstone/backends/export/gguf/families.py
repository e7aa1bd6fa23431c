"""Families of models that can be written as GGUF, and the metadata from which llama.cpp builds them.

What a file cannot express is refused, so that no file computes something else than the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from gguf import GGUFWriter, RopeScalingType
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from chockstone.checkpoints.errors import ExportRefused

Config = Any  # of transformers, of the text part; its attributes differ by family
_BIASES_QKV: Final = ("attn_q", "attn_k", "attn_v")
_BIASES_LLAMA: Final = (*_BIASES_QKV, "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_SLIDING: Final = "sliding_attention"
_FULL: Final = "full_attention"


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """How llama.cpp computes models of one architecture."""

    architecture: str  # as GGUF calls it
    activation: str = "silu"
    is_interleaved: bool = False  # rotates rows 2i and 2i+1 of a head together, and not the halves of the head
    norm_offset: float = 0.0  # norms multiply by this plus their weight, and files hold the sum
    biases: tuple[str, ...] = ()  # tensors that may have one
    shares_head: bool = False  # the output layer is always the embedding
    sliding_every: int | None = None  # all layers but each n-th one slide; None: no layer can
    has_experts: bool = False
    is_scaled: bool = False  # attention scores are scaled by a field of the configuration


FAMILIES: Final[Mapping[str, GgufFamily]] = {  # by model_type
    "llama": GgufFamily("llama", is_interleaved=True, biases=_BIASES_LLAMA),
    "mistral": GgufFamily("llama", is_interleaved=True),
    "qwen2": GgufFamily("qwen2", biases=_BIASES_QKV),
    "qwen3": GgufFamily("qwen3"),
    "qwen3_moe": GgufFamily("qwen3moe", has_experts=True),
    "gemma2": GgufFamily(
        "gemma2",
        activation="gelu_pytorch_tanh",
        norm_offset=1.0,
        shares_head=True,
        sliding_every=2,
        is_scaled=True,
    ),
    "gemma3_text": GgufFamily(
        "gemma3", activation="gelu_pytorch_tanh", norm_offset=1.0, sliding_every=6, is_scaled=True
    ),
}


@dataclass(frozen=True, slots=True)
class GgufDescription:
    """What else belongs to the numbers of a model."""

    frequency_factors: torch.Tensor | None  # by which the frequencies of the rotation are divided
    notes: tuple[str, ...]  # for users of the file


def find_family(config: Config) -> GgufFamily:
    model_type = str(getattr(config, "model_type", None))
    if model_type not in FAMILIES:
        raise ExportRefused(
            f"a model of type {model_type!r:.80} cannot be exported to GGUF; types that can: {', '.join(FAMILIES)}. "
            "Export a merged Hugging Face model, and convert that with llama.cpp's convert_hf_to_gguf.py"
        )
    return FAMILIES[model_type]


def describe(writer: GGUFWriter, config: Config, family: GgufFamily) -> GgufDescription:
    """Check that the file can express what ``config`` says, and add its numbers to ``writer``. Raises ExportRefused."""
    try:
        _check(config, family)
        return _describe(writer, config, family)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, ArithmeticError) as error:  # foreign JSON
        raise ExportRefused(f"config.json of the base model has values that GGUF cannot hold: {error}") from error


def head_size(config: Config) -> int:
    return _count(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _check(config: Config, family: GgufFamily) -> None:
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    if activation != family.activation:
        raise _cannot(f"its activation function {activation!r:.80}; it uses {family.activation!r}")
    if family.architecture == "qwen2" and config.num_attention_heads * head_size(config) != config.hidden_size:
        raise _cannot("heads that together are not as wide as the hidden layer")
    if getattr(config, "use_bidirectional_attention", None):
        raise _cannot("attention to later tokens (use_bidirectional_attention)")
    if family.has_experts:
        if not config.norm_topk_prob:
            raise _cannot("weights of experts that do not sum to one (norm_topk_prob: false)")
        if config.decoder_sparse_step != 1 or config.mlp_only_layers:
            raise _cannot("layers without experts among layers with experts")
    if family.is_scaled:
        _check_scale(config)


def _check_scale(config: Config) -> None:
    """Hold that llama.cpp scales attention scores as the configuration says: it computes the scale from other sizes."""
    width = head_size(config)
    if config.num_hidden_layers == {"gemma2": 46, "gemma3_text": 62}[config.model_type]:  # which it takes for 27B
        width = config.hidden_size // config.num_attention_heads
    if config.query_pre_attn_scalar != width:
        raise _cannot(f"query_pre_attn_scalar {config.query_pre_attn_scalar!r:.80}; it computes with {width}")


def _describe(writer: GGUFWriter, config: Config, family: GgufFamily) -> GgufDescription:
    width = head_size(config)
    writer.add_block_count(_count(config.num_hidden_layers))
    writer.add_embedding_length(_count(config.hidden_size))
    writer.add_feed_forward_length(_count(config.intermediate_size))
    writer.add_head_count(_count(config.num_attention_heads))
    writer.add_head_count_kv(_count(config.num_key_value_heads))
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_layer_norm_rms_eps(float(config.rms_norm_eps))
    writer.add_vocab_size(_count(config.vocab_size))
    if family.has_experts:
        writer.add_expert_count(_count(config.num_experts))
        writer.add_expert_used_count(_count(config.num_experts_per_tok))
        writer.add_expert_feed_forward_length(_count(config.moe_intermediate_size))
    _describe_caps(writer, config, family)
    notes = _describe_window(writer, config, family)
    return GgufDescription(_describe_rotation(writer, config, family), notes)


def _describe_caps(writer: GGUFWriter, config: Config, family: GgufFamily) -> None:
    """Bounds of scores and logits. llama.cpp has its own for Gemma 2 if the file says nothing."""
    scores = getattr(config, "attn_logit_softcapping", None)
    logits = getattr(config, "final_logit_softcapping", None)
    if family.architecture == "gemma2":
        if scores is None or logits is None:
            raise _cannot("models of architecture 'gemma2' without attn_logit_softcapping and final_logit_softcapping")
        writer.add_attn_logit_softcapping(float(scores))
    elif scores is not None:
        raise _cannot("attn_logit_softcapping")
    if logits is not None:
        writer.add_final_logit_softcapping(float(logits))


def _describe_window(writer: GGUFWriter, config: Config, family: GgufFamily) -> tuple[str, ...]:
    """Add the longest context for which the file computes what the model does; returns notes about it."""
    longest = _count(config.max_position_embeddings)
    kinds = list(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if family.sliding_every is not None:
        usual = [_SLIDING if (n + 1) % family.sliding_every else _FULL for n in range(config.num_hidden_layers)]
        if kinds != usual or window is None:
            raise _cannot("an order of sliding and full attention that is not the family's usual one")
        writer.add_sliding_window(_count(window))
        writer.add_context_length(longest)
        return ()
    slides = _SLIDING in kinds if kinds else window is not None
    if not slides or window is None or window >= longest:
        writer.add_context_length(longest)
        return ()
    writer.add_context_length(_count(window))
    note = (
        f"context_length is {window}, not {longest}: the model attends to the last {window} tokens only, and llama.cpp "
        f"computes architecture {family.architecture!r} without a sliding window"
    )
    return (note,)


def _describe_rotation(writer: GGUFWriter, config: Config, family: GgufFamily) -> torch.Tensor | None:
    parameters: Mapping[str, Any] = config.rope_parameters
    if _FULL in parameters:
        sliding = parameters[_SLIDING]
        if sliding.get("rope_type", "default") != "default":
            raise _cannot("scaled rotation in sliding layers")
        writer.add_rope_freq_base_swa(float(sliding["rope_theta"]))
        parameters = parameters[_FULL]
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise _cannot("a rotation of a part of each head (partial_rotary_factor)")
    writer.add_rope_freq_base(float(parameters["rope_theta"]))
    kind = parameters.get("rope_type", "default")
    if kind not in _SCALINGS or (kind == "llama3" and family.architecture != "llama"):
        raise _cannot(f"rotation of type {kind!r:.80} for architecture {family.architecture!r}")
    return _SCALINGS[kind](writer, config, parameters)


def _scale_nothing(_writer: GGUFWriter, _config: Config, _parameters: Mapping[str, Any]) -> None:
    return None


def _scale_linearly(writer: GGUFWriter, _config: Config, parameters: Mapping[str, Any]) -> None:
    writer.add_rope_scaling_type(RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(float(parameters["factor"]))


def _scale_yarn(writer: GGUFWriter, _config: Config, parameters: Mapping[str, Any]) -> None:
    known = {"rope_type", "rope_theta", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow"}
    given = {name for name, value in parameters.items() if value is not None}
    if unknown := sorted(given - known - {"partial_rotary_factor"}):
        raise _cannot(f"rotation of type 'yarn' with {unknown[0]!r:.80}")
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(float(parameters["factor"]))
    writer.add_rope_scaling_orig_ctx_len(_count(parameters["original_max_position_embeddings"]))
    if "beta_fast" in given:
        writer.add_rope_scaling_yarn_beta_fast(float(parameters["beta_fast"]))
    if "beta_slow" in given:
        writer.add_rope_scaling_yarn_beta_slow(float(parameters["beta_slow"]))


def _scale_by_frequency(_writer: GGUFWriter, config: Config, parameters: Mapping[str, Any]) -> torch.Tensor:
    """llama.cpp divides each frequency by a number of the file: here by what makes it the scaled one."""
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    width = head_size(config)
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
    plain = torch.pow(float(parameters["rope_theta"]), -exponents)
    return (plain / scaled.double()).float()


_SCALINGS: Final[Mapping[str, Callable[[GGUFWriter, Config, Mapping[str, Any]], torch.Tensor | None]]] = {
    "default": _scale_nothing,
    "linear": _scale_linearly,
    "llama3": _scale_by_frequency,
    "yarn": _scale_yarn,
}


def _count(value: Any) -> int:  # Any: JSON
    if type(value) is not int or not 0 < value < 2**31:
        raise ValueError(f"{value!r:.80} is no size")
    return value


def _cannot(what: str) -> ExportRefused:
    return ExportRefused(f"llama.cpp cannot compute {what}; export a merged Hugging Face model instead")
