"""A job: the state of one sampling request, from prefill to its last sample."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from chockstone.sampling.constrained.guide import Guide
from chockstone.sampling.model import SampledModel
from chockstone.sampling.network import Prefix, Prepared
from chockstone.sampling.scoring import PromptScores
from chockstone.sampling.sequence import Sequence
from chockstone.sampling.stops import Stops
from chockstone.wire.codecs.samples import SampleRequest, SampleResult


@dataclass(slots=True, eq=False)
class Job:
    """The first ``prefilled`` positions of the prompt are computed. Of the samples, the first ``granted`` have a
    place in the batch, the first ``started`` have a token, and ``ended`` are complete."""

    key: str
    owner: str  # the user with whom it shares places and steps
    arrival: int
    model: SampledModel
    adapter: Prepared
    request: SampleRequest
    sequences: tuple[Sequence, ...]
    scores: PromptScores
    tokens: npt.NDArray[np.int64]
    row_bytes: int  # of KV cache that a row may need at most; 0: the job never decodes
    prefix_bytes: int  # of KV cache for the prompt; 0: one chunk is the whole prompt, and its cache is not kept
    max_chunk_tokens: int
    block_keys: Many[bytes] = ()  # in the prefix cache, of the whole blocks of the prompt
    prefix: Prefix = None
    has_prefix: bool = False  # whether prefix_bytes are reserved: from admission until the last sample starts
    first_logits: torch.Tensor | None = None  # [1, V]: every sample's first token is chosen from them
    prefilled: int = 0
    hit_tokens: int = 0  # of those, taken from the prefix cache
    granted: int = 0
    started: int = 0
    ended: int = 0

    @property
    def decodes(self) -> bool:
        return self.row_bytes > 0

    @property
    def reusable_key(self) -> bytes | None:
        """Of the block that comes next. None: it is not whole, or its logits are needed, which the cache lacks."""
        stop = self.prefilled + self.model.network.prefix_block
        if stop > min(self.scores.first, len(self.tokens) - 1):
            return None
        return next(iter(self.keys_between(self.prefilled, stop)), None)

    def keys_between(self, start: int, stop: int) -> Many[bytes]:
        """Of the whole blocks there; none if the prompt's keys and values are not kept. ``start`` begins a block."""
        block = self.model.network.prefix_block
        return self.block_keys[start // block : stop // block] if self.block_keys and self.prefix_bytes else ()

    def chunk_length(self, space: int) -> int:
        """Number of tokens to compute next, at most ``space``; 0 if less than a block fits."""
        length = min(space, self.max_chunk_tokens, len(self.tokens) - self.prefilled)
        block = self.model.network.prefix_block
        if block and self.prefilled + length < len(self.tokens):
            length -= length % block
        return length

    @property
    def turn(self) -> int:
        return self.arrival + self.granted

    def result(self) -> SampleResult:
        return SampleResult(
            sequences=tuple(sequence.result() for sequence in self.sequences),
            prompt_logprobs=self.scores.logprobs,
            topk_prompt_logprobs=self.scores.topk,
            target_prompt_logprobs=self.scores.targets,
            prompt_alt_tokens=self.scores.alternatives,
            prompt_cache_hit_tokens=self.hit_tokens,
        )


def make_job(
    key: str,
    owner: str,
    arrival: int,
    model: SampledModel,
    adapter: Prepared,
    request: SampleRequest,
    *,
    seed: int,
    max_tokens: int,
    block_keys: Many[bytes] = (),
    new_guide: Callable[[frozenset[int]], Guide | None] = lambda _: None,
) -> Job:
    """``new_guide`` makes the guide of one sample from the tokens that stop it."""
    params, network = request.params, model.network
    length = len(request.prompt)
    stops = Stops(params, eos_tokens=model.eos_tokens, tokenizer=model.tokenizer, texts=model.texts)
    chosen_seed = seed if params.seed is None else params.seed
    sequences = tuple(
        Sequence(
            index=index,
            seed=chosen_seed,
            params=params,
            prompt_length=length,
            max_tokens=max_tokens,
            stops=stops,
            guide=new_guide(stops.tokens),
        )
        for index in range(request.num_samples)
    )
    scores = PromptScores(request, seed=chosen_seed)
    max_chunk_tokens = network.scored_tokens_per_prefill if scores.first < length - 1 else network.tokens_per_prefill
    decodes = max_tokens > 1
    return Job(
        key=key,
        owner=owner,
        arrival=arrival,
        model=model,
        adapter=adapter,
        request=request,
        sequences=sequences,
        scores=scores,
        tokens=request.prompt.astype(np.int64),
        row_bytes=network.room(length + max_tokens - 1) * network.bytes_per_token if decodes else 0,
        prefix_bytes=length * network.bytes_per_token if decodes or length > max_chunk_tokens else 0,
        max_chunk_tokens=max_chunk_tokens,
        block_keys=block_keys,
    )
