"""The sampler: serves many requests in steps. A step reads a piece of some prompts, or decodes one token of a batch.

Continuous batching: a request joins the batch of its model as soon as its prompt is read, and its samples leave one by
one as they end. A sampler must be called from one thread; the caller decides what happens between steps.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, Final

import numpy.typing as npt
import torch

from chockstone.sampling.adapter import Adapter
from chockstone.sampling.admission import check_request
from chockstone.sampling.job import Job, make_job
from chockstone.sampling.model import SampledModel
from chockstone.sampling.network import Batch, Newcomers, Piece, PromptReading
from chockstone.sampling.reading_order import ReadingOrder
from chockstone.sampling.sequence import Sequence
from chockstone.sampling.token_choice import SamplingRules, find_most_likely, gather_rules, pick
from chockstone.sampling.turns import SamplingTurns
from chockstone.wire.codecs.samples import SampleRequest, SampleResult
from chockstone.wire.failures import Failure, RequestError, ServerFailure

log = logging.getLogger(__name__)
_LOGITS: Final = 1 << 23  # elements computed at once while scoring prompts and starting samples
Agreement = Callable[
    [npt.NDArray[Any], npt.NDArray[Any]], tuple[npt.NDArray[Any], ...]
]  # Any: tokens, log-probabilities


@dataclass(frozen=True, slots=True)
class Finished:
    key: str
    outcome: SampleResult | Failure


class Sampler:
    """At most ``max_sequences`` samples decode at once, with at most ``cache_bytes`` of cache; other requests wait.

    A quarter more of both is reserved for owners who have nothing running.
    """

    def __init__(
        self, *, max_sequences: int = 256, cache_bytes: int = 2 << 30, agree: Agreement = lambda *picked: picked
    ) -> None:
        """``agree`` makes the picked tokens the same in all processes of a group."""
        self._cache_bytes = cache_bytes
        self._agree = agree
        self._turns = SamplingTurns(places=max_sequences, cache_bytes=cache_bytes)
        self._jobs: dict[str, Job] = {}
        self._owners: dict[Sequence, Job] = {}  # jobs of the decoding samples
        self._reading = ReadingOrder()  # jobs whose prompts are being read
        self._starting: list[Job] = []  # prompt read, with samples granted and not started
        self._batches: OrderedDict[SampledModel, Batch] = OrderedDict()  # the first decodes next
        self._rules: dict[SampledModel, tuple[Many[Sequence], SamplingRules]] = {}
        self._curious: set[Job] = set()  # jobs that asked for alternatives to sampled tokens
        self._finished: list[Finished] = []
        self._arrivals = 0
        self._has_decoded = False  # in the last step: then prompts are next

    def add(
        self,
        key: str,
        model: SampledModel,
        adapter: Adapter | None,
        request: SampleRequest,
        *,
        seed: int,
        owner: str = "",
    ) -> None:
        """Add a request; a later ``step`` returns its outcome. ``seed`` is used if the request has none.

        Owners share places and reading steps equally. Raises BadRequest if the request is invalid. The adapter must not
        be modified afterwards.
        """
        if key in self._jobs:
            raise ValueError(f"sampling request {key!r} is running already")
        max_tokens = check_request(model, request, cache_bytes=self._cache_bytes)
        try:
            prepared = model.network.prepare(adapter)
        except ServerFailure as failure:
            self._finished.append(Finished(key, Failure.of(failure)))
            return
        self._arrivals += 1
        job = make_job(key, owner, self._arrivals, model, prepared, request, seed=seed, max_tokens=max_tokens)
        self._jobs[key] = job
        self._turns.add(job)
        if request.topk_sample_logprobs:
            self._curious.add(job)

    @torch.inference_mode()
    def cancel(self, key: str) -> None:
        """Remove a request, if it is there, and free what it holds. It has no outcome."""
        if (job := self._jobs.get(key)) is not None:
            self._remove(job)

    def has_work(self) -> bool:
        return bool(self._jobs or self._finished)

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """Do one bounded piece of work. Prompts and tokens alternate, so that neither waits long for the other."""
        admitted, widened = self._turns.admit()
        for job in admitted:
            self._reading.add(job)
        self._starting.extend(widened)
        if self._starting:
            self._start()
        if self._reading and (self._has_decoded or not self._batches):
            self._has_decoded = False
            self._read()
        elif self._batches:
            self._has_decoded = True
            self._decode()
        finished, self._finished = self._finished, []
        return finished

    def _read(self) -> None:
        """Read a piece of each of the next prompts of one model. A long prompt takes turns with those behind it."""
        model = next(self._reading.in_turn()).model
        network, space = model.network, model.network.tokens_per_reading
        jobs: list[Job] = []
        pieces: list[Piece] = []
        for job in self._reading.in_turn():
            if job.model is not model:
                continue
            if not space or len(pieces) == network.pieces_per_reading:
                break
            tokens = job.tokens[job.read : job.read + min(space, job.longest_piece)]
            if not job.prefix_bytes and len(tokens) < len(job.tokens):
                break  # nothing of it is kept, so it is read in one piece
            jobs.append(job)
            is_scored = job.read + len(tokens) > job.scores.first
            pieces.append(Piece(tokens, job.read, job.prefix, job.adapter, is_scored=is_scored))
            space -= len(tokens)
        self._reading.take(jobs)
        try:
            for job, piece in zip(jobs, pieces, strict=True):
                if job.prefix is None and job.prefix_bytes:
                    job.prefix = piece.prefix = network.new_prefix(len(job.tokens))
            reading = network.read(pieces)
        except Exception as error:  # a model can fail in any way; the error goes to its requests
            log.exception("reading prompts failed keys=%s", [job.key for job in jobs])
            self._fail(jobs, error)
            return
        self._take_in(jobs, pieces, reading)

    def _take_in(self, jobs: Many[Job], pieces: Many[Piece], reading: PromptReading) -> None:
        complete: list[int] = []
        for number, (job, piece) in enumerate(zip(jobs, pieces, strict=True)):
            try:
                _score(job, piece, reading, number)
            except RequestError as error:
                self._fail([job], error)
                continue
            job.read = piece.stop
            if job.read < len(job.tokens):
                self._reading.add(job)
            else:
                complete.append(number)
        if not complete:
            return
        last_logits = reading.last_logits(complete)
        for number, logits in zip(complete, torch.split(last_logits, 1), strict=True):
            job = jobs[number]
            job.first_logits = logits
            self._turns.add_samples(job)
            self._starting.append(job)

    def _start(self) -> None:
        """Pick the first tokens of all samples that have a place."""
        jobs, self._starting = list(dict.fromkeys(self._starting)), []
        for model in {job.model: None for job in jobs}:
            rows = [(job, number) for job in jobs if job.model is model for number in range(job.started, job.granted)]
            at_once = max(1, _LOGITS // model.vocabulary)
            for begin in range(0, len(rows), at_once):
                self._start_rows(model, rows[begin : begin + at_once])

    def _start_rows(self, model: SampledModel, rows: Many[tuple[Job, int]]) -> None:
        by_job: dict[Job, list[Sequence]] = {}
        for job, number in rows:
            by_job.setdefault(job, []).append(job.sequences[number])
        counts = {job: len(sequences) for job, sequences in by_job.items() if self._jobs.get(job.key) is job}
        if not counts:
            return
        logits = torch.cat([_first_logits(job).expand(count, -1) for job, count in counts.items()])
        sequences = [sequence for job in counts for sequence in by_job[job]]
        for job, count in counts.items():
            job.started += count
            self._owners.update(dict.fromkeys(by_job[job], job))
        rules = gather_rules([one.params for one in sequences], vocabulary=model.vocabulary, device=logits.device)
        self._give(sequences, logits, rules)
        newcomers = [
            Newcomers(job.owner, [one for one in by_job[job] if one in self._owners], job.prefix, job.adapter)
            for job in counts
        ]
        if staying := [some for some in newcomers if some.sequences]:
            if model not in self._batches:
                self._batches[model] = model.network.new_batch()
            self._batches[model].join(staying)
        for job in counts:
            if job.started == len(job.sequences):
                job.prefix = job.first_logits = None
                self._turns.return_prefix(job)

    def _decode(self) -> None:
        model, batch = next(iter(self._batches.items()))
        self._batches.move_to_end(model)
        threads = torch.get_num_threads()
        if batch.is_light():
            torch.set_num_threads(1)
        try:
            self._decode_batch(model, batch)
        finally:
            torch.set_num_threads(threads)

    def _decode_batch(self, model: SampledModel, batch: Batch) -> None:
        try:
            sequences, logits = batch.decode()
        except Exception as error:  # a model can fail in any way; the error goes to its requests
            log.exception("decoding failed")
            self._fail({job for job in self._owners.values() if job.model is model}, error)
            return
        known = self._rules.get(model)
        if known is None or known[0] is not sequences:
            rules = gather_rules([one.params for one in sequences], vocabulary=model.vocabulary, device=logits.device)
            known = self._rules[model] = (sequences, rules)
        ended = self._give(sequences, logits, known[1])
        if ended:
            self._leave(model, ended)

    def _give(self, sequences: Many[Sequence], logits_BV: torch.Tensor, rules: SamplingRules) -> list[Sequence]:
        """Append one token to each sample. Returns the samples that end with it, which are removed."""
        picked_B, logprobs_B = self._agree(*pick(logits_BV, rules, [next(sequence.uniforms) for sequence in sequences]))
        self._give_alternatives(sequences, logits_BV)
        ended: list[Sequence] = []
        broken: dict[Job, Sequence] = {}
        for sequence, token, logprob in zip(sequences, picked_B.tolist(), logprobs_B.tolist(), strict=True):
            if not math.isfinite(logprob):
                broken.setdefault(self._owners[sequence], sequence)
                continue
            sequence.accept(token, logprob)
            if sequence.stop_reason is not None:
                ended.append(sequence)
        for sequence in ended:
            self._end(sequence)
        for job, sequence in broken.items():  # last: rows may be moved only when all have their new length
            self._fail_broken(job, sequence)
        return ended

    def _give_alternatives(self, sequences: Many[Sequence], logits_BV: torch.Tensor) -> None:
        if not self._curious:
            return
        for job in self._curious:
            rows = [row for row, sequence in enumerate(sequences) if self._owners.get(sequence) is job]
            if not rows:
                continue
            k = job.request.topk_sample_logprobs
            tokens, logprobs = find_most_likely(logits_BV[rows], job.request.params.temperature, k)
            for row, row_tokens, row_logprobs in zip(rows, tokens, logprobs, strict=True):
                sequences[row].accept_topk(row_tokens, row_logprobs)

    def _end(self, sequence: Sequence) -> None:
        job = self._owners.pop(sequence)
        self._turns.end_sample(job)
        if job.ended == len(job.sequences):
            del self._jobs[job.key]
            self._curious.discard(job)
            self._finished.append(Finished(job.key, job.result()))

    def _fail_broken(self, job: Job, sequence: Sequence) -> None:
        where = f"token {len(sequence.tokens)} of sample {sequence.index}"
        error = ServerFailure(
            f"the model's logits are not finite at {where}; "
            "the weights of this sampler hold NaN or infinity, or overflow on this prompt"
        )
        self._fail([job], error)

    def _fail(self, jobs: Iterable[Job], error: Exception) -> None:
        for job in jobs:
            self._remove(job, tainted=True)
            self._finished.append(Finished(job.key, Failure.of(error)))

    def _remove(self, job: Job, *, tainted: bool = False) -> None:
        del self._jobs[job.key]
        self._curious.discard(job)
        self._turns.remove(job)
        self._reading.remove(job)
        self._starting = [other for other in self._starting if other is not job]
        job.prefix = job.first_logits = None
        rows = [sequence for sequence in job.sequences[: job.started] if self._owners.pop(sequence, None) is not None]
        if rows:
            self._leave(job.model, rows, tainted=tainted)

    def _leave(self, model: SampledModel, sequences: Many[Sequence], *, tainted: bool = False) -> None:
        if (batch := self._batches.get(model)) is None:
            return
        batch.leave(sequences, tainted=tainted)
        if batch.is_empty():
            del self._batches[model]
            self._rules.pop(model, None)


def _score(job: Job, piece: Piece, reading: PromptReading, number: int) -> None:
    """The last position is not scored: it predicts the first sampled token."""
    stop = min(piece.stop, len(job.tokens) - 1)
    at_once = max(1, _LOGITS // job.model.vocabulary)
    for start in range(max(piece.start, job.scores.first), stop, at_once):
        job.scores.add(start, reading.logits(number, start, min(stop, start + at_once)))


def _first_logits(job: Job) -> torch.Tensor:
    assert job.first_logits is not None, "samples start after their prompt is read"
    return job.first_logits
