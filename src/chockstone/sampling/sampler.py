"""The sampler: schedules sampling requests by chunked prefill and continuous batching.

A step either computes chunks of some prompts or decodes one token of a batch. A request joins the batch of its model
as soon as its prefill is done, and its samples leave one by one as they end. What prompts of an owner have in common is
computed once, and then read from the prefix cache. Single-threaded: the caller calls it from one thread and may do
other work between steps.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from chockstone.sampling.adapter import Adapter
from chockstone.sampling.admission import check_request
from chockstone.sampling.constrained.guide import Grammar
from chockstone.sampling.fused.prefix_cache import PrefixCache
from chockstone.sampling.job import Job, make_job
from chockstone.sampling.model import SampledModel
from chockstone.sampling.network import Batch, NewRows, PrefillResult, PromptChunk
from chockstone.sampling.prefill_queue import PrefillQueue
from chockstone.sampling.sequence import Sequence
from chockstone.sampling.token_choice import AllowedTokens, SamplingRules, batch_rules, choose_tokens, find_topk
from chockstone.sampling.token_streams import TokenStreams
from chockstone.sampling.turns import SamplingTurns
from chockstone.wire.codecs.sampled_pieces import SampledPiece
from chockstone.wire.codecs.samples import SampleRequest, SampleResult
from chockstone.wire.failures import BadRequest, Failure, RequestError, ServerFailure

log = logging.getLogger(__name__)
_LOGITS: Final = 1 << 23  # elements of logits in memory at once while scoring prompts and starting samples
Agreement = Callable[
    [npt.NDArray[Any], npt.NDArray[Any]], tuple[npt.NDArray[Any], ...]
]  # Any: tokens, log-probabilities


@dataclass(frozen=True, slots=True)
class Finished:
    key: str
    outcome: SampleResult | Failure


@dataclass(frozen=True, slots=True)
class SamplerActivity:
    """What a sampler does at a moment, and what it did so far."""

    requests: int  # not finished, those included that wait for a place
    sequences: int  # that decode
    cache_bytes: int  # of the KV cache, granted
    cache_limit_bytes: int
    decode_steps: int  # so far
    decoded_tokens: int  # so far, one per sequence and step
    prefix_cache_bytes: int
    prefix_cache_limit_bytes: int
    prefix_hit_tokens: int  # so far
    prefix_evicted_blocks: int  # so far


class Sampler:
    """``max_sequences`` samples decode at once, and the KV cache of all requests is reserved from ``cache_bytes``.
    Requests that do not fit wait. A quarter more of both is reserved for owners who have nothing running."""

    def __init__(
        self,
        *,
        max_sequences: int = 256,
        cache_bytes: int = 2 << 30,
        prefix_cache_bytes: int = 512 << 20,
        agree: Agreement = lambda *chosen: chosen,
    ) -> None:
        """``prefix_cache_bytes``: maximum size of the prefix cache, which takes what requests leave of the KV cache.
        ``agree`` makes chosen tokens and logprobs the same in all ranks that sample in lockstep."""
        self._cache_bytes = cache_bytes
        self._prefixes = PrefixCache(prefix_cache_bytes)
        self._agree = agree
        self._turns = SamplingTurns(places=max_sequences, cache_bytes=cache_bytes)
        self._jobs: dict[str, Job] = {}
        self._owners: dict[Sequence, Job] = {}  # the job of each decoding sample
        self._prefill_queue = PrefillQueue()  # admitted, prefill not complete
        self._starting: list[Job] = []  # prefill done, with samples granted but not started
        self._batches: OrderedDict[SampledModel, Batch] = OrderedDict()  # the batch that decodes next is first
        self._rules: dict[SampledModel, tuple[Many[Sequence], SamplingRules]] = {}
        self._topk_jobs: set[Job] = set()  # jobs with topk_sample_logprobs
        self._constrained: set[Job] = set()
        self._streams = TokenStreams()
        self._finished: list[Finished] = []
        self._arrivals = 0
        self._has_decoded = False  # the last step decoded, so the next one is a prefill
        self._decode_steps = 0
        self._decoded_tokens = 0

    def add(
        self,
        key: str,
        model: SampledModel,
        adapter: Adapter | None,
        request: SampleRequest,
        *,
        seed: int,
        owner: str = "",
        is_streamed: bool = False,
        grammar: Grammar | None = None,
    ) -> None:
        """Queue a request; a later ``step`` returns its outcome. ``seed`` is used if the request has none.
        ``is_streamed``: ``take_pieces`` returns its tokens before that. ``grammar``: of the request's constraint.

        Owners share places and prefill steps equally.
        Raises BadRequest for what the caller must change. The adapter must not be modified afterwards.
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
        weights = [model] if adapter is None else [model, adapter]
        job = make_job(
            key,
            owner,
            self._arrivals,
            model,
            prepared,
            request,
            seed=seed,
            max_tokens=max_tokens,
            block_keys=self._prefixes.keys(
                owner, weights, request.prompt.astype(np.int64), block=model.network.prefix_block
            ),
            new_guide=(lambda _: None) if grammar is None else grammar.new_guide,
        )
        self._jobs[key] = job
        self._turns.add(job)
        if request.topk_sample_logprobs:
            self._topk_jobs.add(job)
        if grammar is not None:
            self._constrained.add(job)
        if is_streamed:
            self._streams.add(job)

    @torch.inference_mode()
    def cancel(self, key: str) -> None:
        """Drop a request and free its memory; no outcome is returned. An unknown key is ignored."""
        if (job := self._jobs.get(key)) is not None:
            self._remove(job)

    def activity(self) -> SamplerActivity:
        """May be called from any thread."""
        return SamplerActivity(
            len(self._jobs),
            len(self._owners),
            self._turns.cache_bytes,
            self._turns.cache_limit_bytes,
            self._decode_steps,
            self._decoded_tokens,
            self._prefixes.size_bytes,
            self._prefixes.limit_bytes,
            self._prefixes.hit_tokens,
            self._prefixes.evicted_blocks,
        )

    def drop_prefixes(self) -> None:
        """Empty the prefix cache, and give its memory back."""
        self._prefixes.fit(0)

    @property
    def has_streams(self) -> bool:
        return bool(self._streams)

    def take_pieces(self) -> list[tuple[str, SampledPiece]]:
        """New tokens of streamed requests, with their keys. A request that has ended has none: its outcome has all."""
        return self._streams.take()

    def has_work(self) -> bool:
        return bool(self._jobs or self._finished)

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """A bounded amount of work. Prefill and decode alternate, so that neither waits long for the other."""
        admitted, widened = self._turns.admit()
        for job in admitted:
            self._prefill_queue.add(job)
        self._starting.extend(widened)
        self._prefixes.fit(self._turns.cache_limit_bytes - self._turns.cache_bytes)
        if self._starting:
            self._start()
        if self._prefill_queue and (self._has_decoded or not self._batches):
            self._has_decoded = False
            self._prefill()
        elif self._batches:
            self._has_decoded = True
            self._decode()
        finished, self._finished = self._finished, []
        return finished

    def _prefill(self) -> None:
        """Compute a chunk of each of the next prompts of one model. A long prompt takes turns with those behind it."""
        model = next(self._prefill_queue.in_turn()).model
        network, space = model.network, model.network.tokens_per_prefill
        jobs: list[Job] = []
        chunks: list[PromptChunk] = []
        computing: set[bytes] = set()  # blocks
        for job in self._prefill_queue.in_turn():
            if job.model is not model:
                continue
            if not space or len(chunks) == network.chunks_per_prefill:
                break
            self._reuse(job)
            if job.reusable_key in computing:
                continue  # it takes this block from the cache afterwards
            tokens = job.tokens[job.prefilled : job.prefilled + job.chunk_length(space)]
            if not len(tokens) or (not job.prefix_bytes and len(tokens) < len(job.tokens)):
                break  # less than a block fits; or it has no prefix, so one chunk must be the whole prompt
            computing.update(job.keys_between(job.prefilled, job.prefilled + len(tokens)))
            jobs.append(job)
            is_scored = job.prefilled + len(tokens) > job.scores.first
            chunks.append(PromptChunk(tokens, job.prefilled, job.prefix, job.adapter, is_scored=is_scored))
            space -= len(tokens)
        self._prefill_queue.take(jobs)
        try:
            for job, chunk in zip(jobs, chunks, strict=True):
                if job.prefix is None and job.prefix_bytes:
                    job.prefix = chunk.prefix = network.new_prefix(len(job.tokens))
            prefill = network.prefill(chunks)
        except Exception as error:  # a model can fail in any way; its requests fail with it
            log.exception("prefill failed keys=%s", [job.key for job in jobs])
            self._fail(jobs, error)
            return
        self._accept_prefill(jobs, chunks, prefill)

    def _accept_prefill(self, jobs: Many[Job], chunks: Many[PromptChunk], prefill: PrefillResult) -> None:
        complete: list[int] = []
        for number, (job, chunk) in enumerate(zip(jobs, chunks, strict=True)):
            try:
                _score(job, chunk, prefill, number)
            except RequestError as error:
                self._fail([job], error)
                continue
            job.prefilled = chunk.stop
            self._keep(job, chunk)
            if job.prefilled < len(job.tokens):
                self._prefill_queue.add(job)
            else:
                complete.append(number)
        if not complete:
            return
        last_logits = prefill.last_logits(complete)
        for number, logits in zip(complete, torch.split(last_logits, 1), strict=True):
            job = jobs[number]
            job.first_logits = logits
            self._turns.add_samples(job)
            self._starting.append(job)

    def _reuse(self, job: Job) -> None:
        """Take the next blocks from the prefix cache, up to the first position whose logits are needed."""
        network = job.model.network
        while (key := job.reusable_key) is not None and (content := self._prefixes.get(key)) is not None:
            if job.prefix is None:
                job.prefix = network.new_prefix(len(job.tokens))
            network.paste_block(job.prefix, job.prefilled, content)
            job.prefilled += network.prefix_block
            job.hit_tokens += network.prefix_block
            self._prefixes.hit_tokens += network.prefix_block

    def _keep(self, job: Job, chunk: PromptChunk) -> None:
        """Put the whole blocks of a chunk into the prefix cache."""
        network, start = job.model.network, chunk.start
        for key in job.keys_between(chunk.start, chunk.stop):
            if key not in self._prefixes:
                self._prefixes.add(key, network.copy_block(job.prefix, start))
            start += network.prefix_block
        self._prefixes.touch(job.keys_between(0, chunk.stop))

    def _start(self) -> None:
        """Choose the first tokens of all samples that have a place, and add them to the batch."""
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
        rules = batch_rules([one.params for one in sequences], vocabulary=model.vocabulary, device=logits.device)
        self._give(sequences, logits, rules)
        new_rows = [
            NewRows(job.owner, [one for one in by_job[job] if one in self._owners], job.prefix, job.adapter)
            for job in counts
        ]
        if staying := [some for some in new_rows if some.sequences]:
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
        except Exception as error:  # a model can fail in any way; its requests fail with it
            log.exception("decoding failed")
            self._fail({job for job in self._owners.values() if job.model is model}, error)
            return
        self._decode_steps += 1
        self._decoded_tokens += len(sequences)
        known = self._rules.get(model)
        if known is None or known[0] is not sequences:
            rules = batch_rules([one.params for one in sequences], vocabulary=model.vocabulary, device=logits.device)
            known = self._rules[model] = (sequences, rules)
        ended = self._give(sequences, logits, known[1])
        if ended:
            self._leave(model, ended)

    def _give(self, sequences: Many[Sequence], logits_BV: torch.Tensor, rules: SamplingRules) -> list[Sequence]:
        """Choose one token for each sample. Returns the samples that end with it; they have no job any more."""
        allowed, refused = self._allow(sequences)
        uniforms = [next(sequence.uniforms) for sequence in sequences]
        chosen_B, logprobs_B = self._agree(*choose_tokens(logits_BV, rules, uniforms, allowed))
        self._give_topk(sequences, logits_BV)
        ended: list[Sequence] = []
        broken: dict[Job, Sequence] = {}
        for sequence, token, logprob in zip(sequences, chosen_B.tolist(), logprobs_B.tolist(), strict=True):
            if self._owners[sequence] in refused:
                continue
            if not math.isfinite(logprob):
                broken.setdefault(self._owners[sequence], sequence)
                continue
            sequence.accept(token, logprob)
            if sequence.stop_reason is not None:
                ended.append(sequence)
        for sequence in ended:
            self._end(sequence)
        for job, sequence in broken.items():  # last: rows may only move when all have their new length
            self._fail_broken(job, sequence)
        for job, error in refused.items():
            self._fail([job], error)
        return ended

    def _allow(self, sequences: Many[Sequence]) -> tuple[AllowedTokens | None, dict[Job, BadRequest]]:
        """The tokens that constraints allow, and the jobs whose constraint cannot be followed any further."""
        refused: dict[Job, BadRequest] = {}
        if not self._constrained:
            return None, refused
        rows, masks = [], []
        for row, sequence in enumerate(sequences):
            if sequence.guide is None:
                continue
            try:
                masks.append(sequence.guide.allow())
                rows.append(row)
            except BadRequest as error:
                refused[self._owners[sequence]] = error
        if not rows:
            return None, refused
        device = self._owners[sequences[rows[0]]].model.device
        mask_RV = torch.from_numpy(np.stack(masks)).to(device)
        return AllowedTokens(torch.tensor(rows, device=device), mask_RV), refused

    def _give_topk(self, sequences: Many[Sequence], logits_BV: torch.Tensor) -> None:
        if not self._topk_jobs:
            return
        for job in self._topk_jobs:
            rows = [row for row, sequence in enumerate(sequences) if self._owners.get(sequence) is job]
            if not rows:
                continue
            k = job.request.topk_sample_logprobs
            tokens, logprobs = find_topk(logits_BV[rows], job.request.params.temperature, k)
            for row, row_tokens, row_logprobs in zip(rows, tokens, logprobs, strict=True):
                sequences[row].accept_topk(row_tokens, row_logprobs)

    def _end(self, sequence: Sequence) -> None:
        job = self._owners.pop(sequence)
        self._turns.end_sample(job)
        if job.ended == len(job.sequences):
            del self._jobs[job.key]
            self._drop_kinds(job)
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
        self._drop_kinds(job)
        self._turns.remove(job)
        self._prefill_queue.remove(job)
        self._starting = [other for other in self._starting if other is not job]
        job.prefix = job.first_logits = None
        rows = [sequence for sequence in job.sequences[: job.started] if self._owners.pop(sequence, None) is not None]
        if rows:
            self._leave(job.model, rows, tainted=tainted)

    def _drop_kinds(self, job: Job) -> None:
        self._topk_jobs.discard(job)
        self._constrained.discard(job)
        self._streams.remove(job)

    def _leave(self, model: SampledModel, sequences: Many[Sequence], *, tainted: bool = False) -> None:
        if (batch := self._batches.get(model)) is None:
            return
        batch.leave(sequences, tainted=tainted)
        if batch.is_empty():
            del self._batches[model]
            self._rules.pop(model, None)


def _score(job: Job, chunk: PromptChunk, prefill: PrefillResult, number: int) -> None:
    """The last position predicts the first sampled token, and so is no part of the prompt's score."""
    stop = min(chunk.stop, len(job.tokens) - 1)
    at_once = max(1, _LOGITS // job.model.vocabulary)
    for start in range(max(chunk.start, job.scores.first), stop, at_once):
        job.scores.add(start, prefill.logits(number, start, min(stop, start + at_once)))


def _first_logits(job: Job) -> torch.Tensor:
    assert job.first_logits is not None, "samples start after their prefill"
    return job.first_logits
