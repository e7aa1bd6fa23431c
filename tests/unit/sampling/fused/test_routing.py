from __future__ import annotations

import numpy as np
import torch

from chockstone.sampling.experts.modules import make_experts_adaptable
from chockstone.sampling.experts.routers import RoutingRecorder
from chockstone.sampling.fused.routing import FusedRouting
from chockstone.sampling.network import NewRows, PromptChunk
from chockstone.sampling.sequence import Sequence
from chockstone.sampling.stops import Stops
from chockstone.wire.codecs.samples import SamplingParams
from support.tiny_experts import tiny_experts


def sequence(index: int) -> Sequence:
    params = SamplingParams()
    stops = Stops(params, eos_tokens=frozenset(), tokenizer=None, texts=None)  # type: ignore[arg-type]  # not asked
    return Sequence(index=index, seed=1, params=params, prompt_length=3, max_tokens=5, stops=stops)


def test_a_row_has_the_routing_of_its_own_prompt_and_of_its_own_tokens() -> None:
    modules = list(make_experts_adaptable(tiny_experts()).values())
    routing = FusedRouting(RoutingRecorder(modules))
    prefixes = [torch.zeros(1), torch.zeros(1)]
    tokens = [np.zeros(length, np.int64) for length in (2, 3)]
    chunks = [PromptChunk(each, 0, prefix, None, False) for each, prefix in zip(tokens, prefixes, strict=True)]
    rows = [sequence(0), sequence(1)]

    for module in modules:
        module.chosen = [torch.tensor([[0, 1], [1, 2]]), torch.tensor([[2, 3], [3, 4], [4, 5]])]
    routing.note_prompts(chunks)
    routing.note_started([NewRows("it", [row], prefix, None) for row, prefix in zip(rows, prefixes, strict=True)])
    for module in modules:
        module.chosen = [torch.tensor([[5, 0], [5, 1]])]
    routing.note_decoded(rows)

    found = [np.concatenate(row.routing)[:, 1].tolist() for row in rows]
    assert found == [[[0, 1], [1, 2], [5, 0]], [[2, 3], [3, 4], [4, 5], [5, 1]]]
