# tensors carry their axes
"""Recorded routing of the fused network: which experts were chosen for the tokens of prompts and of decoding rows."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from collections.abc import Sequence as Many
from contextlib import contextmanager

import torch
from torch.utils.weak import WeakIdKeyDictionary

from chockstone.sampling.experts.routers import RoutingRecorder
from chockstone.sampling.network import NewRows, PromptChunk
from chockstone.sampling.sequence import Sequence
from chockstone.wire.codecs.routing import Routing


class FusedRouting:
    def __init__(self, recorder: RoutingRecorder) -> None:
        self._recorder = recorder
        self._prompts: MutableMapping[torch.Tensor, list[Routing]] = WeakIdKeyDictionary()  # by prefix: its chunks'

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Surrounds one pass of the decoder."""
        with self._recorder.recording():
            yield

    def note_prompts(self, chunks: Many[PromptChunk]) -> None:
        """Of the last pass, whose rows were those of the chunks."""
        rows_NLK, start = self._recorder.take_rows().numpy(), 0
        for chunk in chunks:
            if chunk.prefix is not None:
                self._prompts.setdefault(chunk.prefix, []).append(rows_NLK[start : start + len(chunk.tokens)])
            start += len(chunk.tokens)

    def note_started(self, new_rows: Many[NewRows]) -> None:
        for some in new_rows:
            for sequence in some.sequences:
                sequence.routing = list(self._prompts.get(some.prefix, ()))

    def note_decoded(self, sequences: Many[Sequence]) -> None:
        """Of the last pass, which had one row of each sequence."""
        for sequence, routing_LK in zip(sequences, self._recorder.take_rows().numpy(), strict=True):
            sequence.routing.append(routing_LK[None])
