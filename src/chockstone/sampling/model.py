"""A base model prepared for sampling: its network, tokenizer, vocabulary and end-of-sequence tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from chockstone.sampling.fused.llama import FusedLlama
from chockstone.sampling.fused.weights import fuse_weights
from chockstone.sampling.generic import GenericNetwork
from chockstone.sampling.network import Network, PromptChunk

log = logging.getLogger(__name__)


class SampledModel:
    """Llama-like models use the fused network, all others the generic one.

    The caller must not change the model's weights while samples are taken. The linear weights may become views
    of larger tensors. Training of adapters on the same model may continue: nothing else of it is touched.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_context: int,
        computing: Callable[[], AbstractContextManager[None]] | None = None,
        records_routing: bool = False,
        packable_bytes: int = 0,
    ) -> None:
        """``computing`` is entered around each forward of a sharded model, which uses the generic network.

        ``records_routing``: samples of a mixture of experts say which experts were chosen. ``packable_bytes``: memory
        for copies of the weights with which few rows decode faster; if it is not enough, there are no copies.
        """
        self.records_routing = records_routing
        embeddings: Any = model.get_input_embeddings()  # Any: an Embedding, or what training wrapped one in
        self.vocabulary = int(embeddings.weight.shape[0])
        self.max_context = max_context
        self.tokenizer = tokenizer
        self.device = model.device
        self.eos_tokens = find_eos_tokens(model, tokenizer)
        self.texts: dict[int, str] = {}  # token → its text, decoded alone; filled on demand
        self.network: Network
        if computing is None:
            generic = GenericNetwork(model, vocabulary=self.vocabulary, records_routing=records_routing)
            self.network = _choose_network(
                model,
                generic,
                max_context=max_context,
                vocabulary=self.vocabulary,
                records_routing=records_routing,
                packable_bytes=packable_bytes,
            )
        else:
            self.network = GenericNetwork(
                model, vocabulary=self.vocabulary, computing=computing, records_routing=records_routing
            )


def find_eos_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    found: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        found.update([value] if isinstance(value, int) else value or [])
    return frozenset(found)


def _choose_network(
    model: PreTrainedModel,
    generic: GenericNetwork,
    *,
    max_context: int,
    vocabulary: int,
    records_routing: bool,
    packable_bytes: int,
) -> Network:
    weights = fuse_weights(model, max_context=max_context, packable_bytes=packable_bytes)
    if weights is None:
        log.info("sampling generic model=%s reason=structure", type(model).__name__)
        return generic
    fused = FusedLlama(weights, records_routing=records_routing)
    if not _agree(fused, generic, vocabulary=vocabulary, max_context=max_context, dtype=model.dtype):
        log.warning("sampling generic model=%s reason=numbers", type(model).__name__)
        return generic
    return fused


@torch.inference_mode()
def _agree(fused: Network, generic: Network, *, vocabulary: int, max_context: int, dtype: torch.dtype) -> bool:
    """Compare logits of a few tokens: modules can have the known names and compute something else."""
    tokens = torch.arange(min(8, max_context)).mul_(7919).remainder_(vocabulary).numpy()
    results = []
    for network in (fused, generic):
        chunk = PromptChunk(tokens, 0, network.new_prefix(len(tokens)), network.prepare(None), is_scored=True)
        results.append(network.prefill([chunk]).logits(0, 0, len(tokens)))
    fused_logits, generic_logits = results
    if not bool(torch.isfinite(generic_logits).all()):
        return True  # with weights that are not finite each request fails by itself
    tolerance = 1e-3 if dtype == torch.float32 else 0.1
    return bool((fused_logits - generic_logits).abs().max() <= tolerance * generic_logits.std().clamp(min=1e-6))
