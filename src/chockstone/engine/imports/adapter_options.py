"""Adapter options: ``adapter_config.json`` of PEFT, reduced to what decides how an adapter computes.

An option that would change what the adapter computes, and that runs do not have, is refused by name. So is an option
that this version does not know, unless it is off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from chockstone.wire.codecs.json_files import parse_json
from chockstone.wire.failures import BadRequest

CONFIG: Final = "adapter_config.json"
MAX_CONFIG_BYTES: Final = 1 << 20
_MAX_RANK: Final = 4096
_MAX_ALPHA: Final = 1e6
_USED: Final = frozenset({"peft_type", "task_type", "r", "lora_alpha", "use_rslora", "bias", "init_lora_weights"})
_WITHOUT_EFFECT: Final = frozenset(  # on the function of a finished adapter
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "fan_in_fan_out",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "target_modules",
    }
)
_NAMED: Final = {  # options that are refused, in words
    "use_dora": "DoRA rescales each weight by a learned magnitude, which runs do not have",
    "rank_pattern": "layers with ranks of their own; a run has one rank",
    "alpha_pattern": "layers with scales of their own; a run has one scale",
    "modules_to_save": "whole layers that were trained beside the adapter",
    "target_parameters": "adapters of parameters, such as fused experts, cannot be imported yet",
    "layer_replication": "a base model with repeated layers",
    "trainable_token_indices": "trained embeddings of tokens",
    "lora_bias": "biases that were trained beside the matrices",
    "use_qalora": "QALoRA pools the inputs of its matrices",
    "megatron_config": "layers that Megatron splits",
    "alora_invocation_tokens": "an activated LoRA, which starts at certain tokens",
}
# The others change the weights of the base model: such an adapter is only right on the changed base model.
_HARMLESS_STARTS: Final = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    rank: int
    alpha: float
    scale: float  # of the product of its matrices
    ignored: dict[str, Any]  # options without an effect on the imported weights; Any: plain JSON


def read_options(content: bytes) -> AdapterOptions:
    """Raises BadRequest, with the name of the option."""
    config = _parse(content)
    _require(config.get("peft_type") == "LORA", "peft_type", config, "only LORA adapters can be imported")
    _require(config.get("task_type") in (None, "CAUSAL_LM"), "task_type", config, "only CAUSAL_LM can be imported")
    _require(config.get("bias", "none") == "none", "bias", config, "runs train no biases")
    _require(
        _is_one_of(config.get("init_lora_weights", True), _HARMLESS_STARTS),
        "init_lora_weights",
        config,
        "it changes the weights of the base model. Convert the adapter with PEFT's save_pretrained("
        "path_initial_model_for_weight_conversion=…)",
    )
    for name, value in config.items():
        if name in _USED or name in _WITHOUT_EFFECT or not value:
            continue
        raise _refusal(name, value, _NAMED.get(name, "this version does not know whether it changes the adapter"))
    rank, alpha, root = config.get("r"), config.get("lora_alpha", 8), config.get("use_rslora", False)
    if type(rank) is not int or not 1 <= rank <= _MAX_RANK:
        raise _refusal("r", rank, f"the rank is a whole number from 1 to {_MAX_RANK}")
    if type(alpha) not in (int, float) or not 0 < alpha <= _MAX_ALPHA:
        raise _refusal("lora_alpha", alpha, "it is a number above 0")
    if type(root) is not bool:
        raise _refusal("use_rslora", root, "it is true or false")
    scale = alpha / (math.sqrt(rank) if root else rank)
    ignored = {name: value for name, value in config.items() if name in _WITHOUT_EFFECT and value}
    return AdapterOptions(rank, float(alpha), scale, ignored)


def _parse(content: bytes) -> dict[str, Any]:  # Any: plain JSON
    if len(content) > MAX_CONFIG_BYTES:
        raise BadRequest(f"{CONFIG!r} has {len(content)} bytes; a configuration has at most {MAX_CONFIG_BYTES}")
    try:
        config = parse_json(content)
    except ValueError as error:
        raise BadRequest(f"{CONFIG!r} is not JSON: {error}. Send the file that PEFT wrote") from None
    if not isinstance(config, dict):
        raise BadRequest(f"{CONFIG!r} holds no JSON object. Send the file that PEFT wrote")
    return config


def _is_one_of(value: Any, choices: tuple[Any, ...]) -> bool:  # Any: plain JSON; 1 is not True here
    return any(type(value) is type(choice) and value == choice for choice in choices)


def _require(holds: bool, name: str, config: dict[str, Any], why: str) -> None:
    if not holds:
        raise _refusal(name, config.get(name), why)


def _refusal(name: str, value: Any, why: str) -> BadRequest:
    return BadRequest(f"{CONFIG!r} has {name!r:.200} = {value!r:.80}: {why}. Nothing was imported")
