"""The generic network: any causal model through its own ``forward`` and its own KV cache.

The samples of one prompt are equally long, so they form a batch that needs no padding and no mask, whatever the
architecture does with its cache. The batches of several prompts take turns.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from chockstone.sampling.adapter import Adapter, AdapterCache, LowRank
from chockstone.sampling.experts.modules import ExpertProjection, expert_projections, make_experts_adaptable
from chockstone.sampling.experts.routers import RoutingRecorder
from chockstone.sampling.fused.adapter import check_adapter
from chockstone.sampling.network import LIGHT, NewRows, PromptChunk, choose_tokens_per_prefill
from chockstone.sampling.quantised.linear import frozen_weight
from chockstone.sampling.round_robin import RoundRobin
from chockstone.sampling.sequence import Sequence
from chockstone.wire.codecs.routing import Routing

_LOGITS: Final = 1 << 24  # elements of logits of one prefill step


@dataclass(frozen=True, slots=True, eq=False)
class HookedAdapter:
    layers: tuple[tuple[nn.Module, torch.Tensor, torch.Tensor], ...]  # module, down_t, up_t
    experts: tuple[tuple[ExpertProjection, LowRank], ...]
    scale: float  # of the experts' matrices; the others are scaled


@dataclass(slots=True)
class _Prefix:
    cache: DynamicCache
    routing: list[Routing]  # of its tokens, if it is recorded


@dataclass(slots=True, eq=False)
class _Group:
    owner: str
    rows: list[Sequence]
    cache: DynamicCache
    adapter: HookedAdapter


class GenericNetwork:
    chunks_per_prefill = 1
    prefix_block = 0

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        vocabulary: int,
        computing: Callable[[], AbstractContextManager[None]] = nullcontext,
        records_routing: bool = False,
    ) -> None:
        """``computing`` is entered around each forward of the model. ``records_routing``: sequences keep which experts
        were chosen for their tokens."""
        self._model = model
        self._computing = computing
        self.device = model.device
        self.size = sum(parameter.numel() for parameter in model.parameters())
        self._modules = dict(model.named_modules())
        experts = make_experts_adaptable(model)
        self._experts = expert_projections(experts)
        self._recorder = RoutingRecorder(experts.values()) if records_routing and experts else None
        self._prepared = AdapterCache(self._hook)
        self._base = HookedAdapter((), (), 1.0)
        self.tokens_per_prefill = choose_tokens_per_prefill(self.size, model.device)
        self.scored_tokens_per_prefill = max(16, min(self.tokens_per_prefill, _LOGITS // vocabulary))
        parameters = inspect.signature(model.forward).parameters
        self._can_keep_few = "logits_to_keep" in parameters
        self._cache_name = "cache_params" if "cache_params" in parameters else "past_key_values"  # Mamba, all others
        self.bytes_per_token = _bytes_per_token(model)

    def prepare(self, adapter: Adapter | None) -> HookedAdapter:
        if adapter is None:
            return self._base
        return self._prepared.get(adapter)

    def _hook(self, adapter: Adapter) -> HookedAdapter:
        check_adapter(adapter, self._modules.keys() | self._experts.keys())
        layers, experts = [], []
        for name, layer in adapter.layers.items():
            if (projection := self._experts.get(name)) is not None:
                experts.append((projection, LowRank(layer.down.to(self.device), layer.up.to(self.device))))
                continue
            module: Any = self._modules[name]  # Any: a linear, or what training wrapped one in
            like = frozen_weight(module)
            down_t = layer.down.to(like.device, like.dtype).t()
            up_t = (layer.up * adapter.scale).to(like.device, like.dtype).t()
            layers.append((module, down_t, up_t))
        return HookedAdapter(tuple(layers), tuple(experts), adapter.scale)

    def room(self, length: int) -> int:
        return length

    def new_prefix(self, length: int) -> _Prefix:  # noqa: ARG002  # this cache grows by itself
        return _Prefix(DynamicCache(config=self._model.config), [])

    def copy_block(self, prefix: _Prefix, start: int) -> torch.Tensor:
        raise NotImplementedError("caches of any architecture have no blocks")

    def paste_block(self, prefix: _Prefix, start: int, block: torch.Tensor) -> None:
        raise NotImplementedError("caches of any architecture have no blocks")

    def prefill(self, chunks: Many[PromptChunk]) -> GenericPrefill:
        (chunk,) = chunks
        if chunk.prefix is None:
            chunk.prefix = self.new_prefix(chunk.stop)
        tokens = torch.from_numpy(chunk.tokens).to(self.device)[None]
        logits = self.forward(tokens, chunk.prefix.cache, chunk.adapter, keep_all=chunk.is_scored)
        if (routing := self.last_routing(tokens)) is not None:
            chunk.prefix.routing.append(routing[0])
        return GenericPrefill(chunk, logits[0])

    def new_batch(self) -> GenericBatch:
        return GenericBatch(self)

    def forward(
        self, tokens: torch.Tensor, cache: DynamicCache, adapter: HookedAdapter, *, keep_all: bool
    ) -> torch.Tensor:
        few = {"logits_to_keep": 1} if self._can_keep_few and not keep_all else {}
        recording = nullcontext() if self._recorder is None else self._recorder.recording()
        with self._computing(), _evaluating(self._model), _hooked(adapter), recording:
            given = {self._cache_name: cache, **few}
            result = self._model(input_ids=tokens, use_cache=True, return_dict=True, **given)
        logits = result.logits
        assert isinstance(logits, torch.Tensor)
        return logits

    def last_routing(self, tokens: torch.Tensor) -> Routing | None:
        """[B, T, L, K] of the tokens of the last forward; None if nothing is recorded. Call it once."""
        if self._recorder is None:
            return None
        rows_NLK = self._recorder.take_rows()
        routing: Routing = rows_NLK.view(*tokens.shape, *rows_NLK.shape[1:]).numpy()
        return routing


class GenericBatch:
    def __init__(self, network: GenericNetwork) -> None:
        self._network = network
        self._groups: RoundRobin[_Group] = RoundRobin()

    def join(self, new_rows: Many[NewRows]) -> None:
        for some in new_rows:
            for sequence in some.sequences:
                sequence.routing = list(some.prefix.routing)
            cache = copy.deepcopy(some.prefix.cache)
            _reorder(cache, [0] * len(some.sequences), self._network.device)
            self._groups.add(some.owner, _Group(some.owner, list(some.sequences), cache, some.adapter))

    def leave(self, sequences: Many[Sequence], *, tainted: bool = False) -> None:  # noqa: ARG002  # rows share no memory
        gone = set(sequences)
        for group in list(self._groups):
            kept = [row for row, sequence in enumerate(group.rows) if sequence not in gone]
            if not kept:
                self._groups.remove(group.owner, group)
            elif len(kept) < len(group.rows):
                group.rows = [group.rows[row] for row in kept]
                _reorder(group.cache, kept, self._network.device)

    def is_empty(self) -> bool:
        return not self._groups

    def is_light(self) -> bool:
        return len(self._groups.first().rows) * self._network.size <= LIGHT

    def decode(self) -> tuple[list[Sequence], torch.Tensor]:
        group = self._groups.take()
        self._groups.add(group.owner, group)
        tokens = torch.tensor([[sequence.tokens[-1]] for sequence in group.rows], device=self._network.device)
        logits = self._network.forward(tokens, group.cache, group.adapter, keep_all=False)
        if (routing := self._network.last_routing(tokens)) is not None:
            for sequence, chosen in zip(group.rows, routing, strict=True):
                sequence.routing.append(chosen)
        return group.rows, logits[:, -1].float()


class GenericPrefill:
    def __init__(self, chunk: PromptChunk, logits_NV: torch.Tensor) -> None:
        self._chunk = chunk
        self._logits_NV = logits_NV

    def logits(self, chunk: int, start: int, stop: int) -> torch.Tensor:
        assert chunk == 0
        return self._logits_NV[start - self._chunk.start : stop - self._chunk.start].float()

    def last_logits(self, chunks: Many[int]) -> torch.Tensor:
        assert list(chunks) == [0]
        return self._logits_NV[-1:].float()


def _reorder(cache: DynamicCache, rows: list[int], device: torch.device) -> None:
    """Keep the given rows of a cache, in this order; a row may be given several times."""
    cache.reorder_cache(torch.tensor(rows, device=device))  # type: ignore[arg-type]  # it says LongTensor and means this


@contextmanager
def _hooked(adapter: HookedAdapter) -> Iterator[None]:
    handles = []
    for module, down_t, up_t in adapter.layers:

        def add(
            _: nn.Module,
            inputs: tuple[torch.Tensor, ...],
            output: torch.Tensor,
            down_t: torch.Tensor = down_t,
            up_t: torch.Tensor = up_t,
        ) -> torch.Tensor:
            return output + (inputs[0] @ down_t) @ up_t

        handles.append(module.register_forward_hook(add))
    for projection, matrices in adapter.experts:
        projection.active, projection.scale = matrices, adapter.scale
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for projection, _ in adapter.experts:
            projection.active = None


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode inside the block: training may share this model and use dropout."""
    if not model.training:
        yield
        return
    model.train(False)
    try:
        yield
    finally:
        model.train()


def _bytes_per_token(model: PreTrainedModel) -> int:
    """From the configuration; if it uses other names, assume attention with all heads."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 1)
    hidden = getattr(config, "hidden_size", 1024)
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or hidden // max(1, heads)
    return int(2 * getattr(config, "num_hidden_layers", 1) * key_heads * width * model.dtype.itemsize)
