"""The sampling source: runs the sampler on the compute thread and completes a future for each finished sample."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from chockstone.backends.calls import PiecesEvent
from chockstone.backends.training.process_group import SINGLE_PROCESS, ProcessGroup
from chockstone.backends.worker.sampler_weights import Weights
from chockstone.sampling.constrained.compiler import GrammarCompiler
from chockstone.sampling.constrained.guide import Grammar
from chockstone.sampling.model import SampledModel
from chockstone.sampling.sampler import Finished, Sampler, SamplerActivity
from chockstone.wire.codecs.samples import Constraint, SampleRequest, SampleResult
from chockstone.wire.failures import BadRequest, Failure

log = logging.getLogger(__name__)
_ALTERNATIVE_CELLS: Final = 1 << 26  # in one result, 8 bytes each
_SEND_SECONDS: Final = 0.005  # between two messages with pieces: steps of a small model are shorter


class SamplingSource:
    """All methods but ``activity`` are for the compute thread."""

    def __init__(
        self,
        max_sequences: int,
        prefix_cache_bytes: int = 0,
        *,
        process_group: ProcessGroup = SINGLE_PROCESS,
        on_pieces: Callable[[PiecesEvent], None] = lambda _: None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``on_pieces`` is called with the new tokens of all streamed samples, every few milliseconds at most."""
        self._on_pieces = on_pieces
        self._now = now
        self._sent_at = now()
        self._max_sequences = max_sequences
        self._prefix_cache_bytes = prefix_cache_bytes
        self._grammars = GrammarCompiler()
        self._process_group = process_group
        self._sampler = self._new_sampler()
        self._under_way: dict[str, Future[SampleResult | Failure]] = {}
        self._streams: dict[str, int] = {}  # the number of the call, by key of the sample

    def add(
        self,
        key: str,
        weights: Weights,
        request: SampleRequest,
        *,
        seed: int,
        owner: str = "",
        stream: int | None = None,
        grammar: Grammar | None = None,
    ) -> Future[SampleResult | Failure]:
        """Start a sample. Raises BadRequest if the request cannot be served.

        ``stream``: the number of the call to send pieces to, if it is streamed. ``grammar``: of its constraint.
        """
        _check_alternatives(request, weights.model)
        self._sampler.add(
            key,
            weights.model,
            weights.adapter,
            request,
            seed=seed,
            owner=owner,
            is_streamed=stream is not None,
            grammar=grammar,
        )
        if stream is not None:
            self._streams[key] = stream
        done = self._under_way[key] = Future()
        return done

    def activity(self) -> SamplerActivity:
        """May be called from any thread."""
        return self._sampler.activity()

    def compile(self, model: SampledModel, constraint: Constraint) -> Future[Grammar]:
        """The grammar to pass to ``add``. The future raises BadRequest for what this server cannot follow."""
        return self._grammars.compile(model.tokenizer, constraint, vocabulary=model.vocabulary)

    def drop_prefixes(self) -> None:
        """Give back the memory of the prefix cache."""
        self._sampler.drop_prefixes()

    def has_work(self) -> bool:
        return self._sampler.has_work()

    def step(self) -> None:
        try:
            for finished in self._sampler.step():
                self._finish(finished)
        except Exception as error:  # noqa: BLE001  # the sampler's state is unknown: its samples fail, training continues
            log.error("sampler failed error=%s\n%s", error, traceback.format_exc())
            self._process_group.abort(error)
            self._sampler = self._new_sampler()
            for key in list(self._under_way):
                self._finish(Finished(key, Failure(f"the sampler failed: {type(error).__name__}: {error}", "server")))
        if self._sampler.has_streams and (now := self._now()) >= self._sent_at + _SEND_SECONDS:
            self._send_pieces(now)

    def cancel(self, key: str) -> None:
        self._sampler.cancel(key)
        self._streams.pop(key, None)
        if (done := self._under_way.pop(key, None)) is not None:
            done.set_result(Failure("the sample was cancelled", "user"))

    def close(self) -> None:
        """End the thread that compiles."""
        self._grammars.close()

    def _send_pieces(self, now: float) -> None:
        if pieces := self._sampler.take_pieces():
            self._sent_at = now
            numbers = tuple(self._streams[key] for key, _ in pieces)
            self._on_pieces(PiecesEvent(numbers, tuple(piece for _, piece in pieces)))

    def _new_sampler(self) -> Sampler:
        return Sampler(
            max_sequences=self._max_sequences,
            prefix_cache_bytes=self._prefix_cache_bytes,
            agree=self._process_group.broadcast_arrays,
        )

    def _finish(self, finished: Finished) -> None:
        self._streams.pop(finished.key, None)
        self._under_way.pop(finished.key).set_result(finished.outcome)


def _check_alternatives(request: SampleRequest, model: SampledModel) -> None:
    """Raises BadRequest for more alternatives to sampled tokens than a result can hold."""
    space = max(model.max_context - len(request.prompt), 1)
    longest = min(request.params.max_tokens or space, space)
    cells = request.topk_sample_logprobs * request.num_samples * longest
    if cells > _ALTERNATIVE_CELLS:
        raise BadRequest(
            f"topk_sample_logprobs={request.topk_sample_logprobs} for {request.num_samples} samples of up to {longest} "
            f"tokens is {cells} alternatives, more than {_ALTERNATIVE_CELLS}; ask for fewer of one of them"
        )
