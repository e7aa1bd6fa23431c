"""Fitting: a pass that runs out of memory is computed again, with more recomputation or in smaller micro-batches.

Recomputation changes no bit. The size of the micro-batches does: so the reply of the pass says which size it ended
with, the engine journals it, and a replay gets that size and chooses no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Final

import torch

from chockstone.backends.losses.custom_loss import CustomLoss
from chockstone.backends.memory.out_of_memory import PassOutOfMemory, is_out_of_memory, release_memory
from chockstone.backends.planning.refusals import available_bytes, check_run
from chockstone.backends.protocol import LossLimits
from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.activations import free_memory
from chockstone.backends.training.base_model import BaseModel
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.codecs.passes import Pass, PassResult
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure
from chockstone.wire.sizes import format_size

log = logging.getLogger(__name__)
_TOLERANCE: Final = 1.1  # what is predicted to need more than this share of the free memory is not tried


@dataclass(frozen=True, slots=True)
class FittedPass:
    result: PassResult
    tokens_per_micro_batch: int | None  # None: the size that was asked for


def check_fits(base: BaseModel, spec: RunSpec, others: Many[TrainedRun], *, give_back: Callable[[], None]) -> None:
    """Raises BadRequest if a new run cannot fit, also after ``give_back`` has freed what is not needed."""
    try:
        check_run(base, spec, others=others, free_bytes=available_bytes(base.device))
    except BadRequest:
        give_back()
        check_run(base, spec, others=others, free_bytes=available_bytes(base.device))


def apply_fitting(
    run: TrainedRun,
    request: Pass,
    losses: Mapping[str, CustomLoss],
    *,
    tokens_per_micro_batch: int,
    is_replay: bool = False,
    loss_limits: LossLimits = "enforced",
    checks_memory: bool = False,
) -> Generator[None, None, FittedPass]:
    """Like ``TrainedRun.apply``. After each try that runs out of memory the micro-batches are halved.

    ``checks_memory``: micro-batches that need more than what is free are not even tried, because a system that gives
    memory away twice ends the process instead of refusing an allocation.

    Raises BadRequest if a single datum does not fit, and ServerFailure if a replay does not. Both leave the run as it
    was before.
    """
    asked = tokens = run.choose_budget(tokens_per_micro_batch)
    if checks_memory and not is_replay and (free_bytes := available_bytes(run.base.device)) is not None:
        tokens = _choose_tokens(run, request, asked, free_bytes)
    while True:
        try:
            result = yield from run.apply(request, losses, tokens_per_micro_batch=tokens, loss_limits=loss_limits)
            return FittedPass(result, None if tokens == asked else tokens)
        except Exception as error:
            if not isinstance(error, PassOutOfMemory) and not is_out_of_memory(error):
                raise
            short = error if isinstance(error, PassOutOfMemory) else PassOutOfMemory((), 0)
        # Outside of the block above: the error referred to everything that the failed try had allocated.
        short = PassOutOfMemory(short.datums, short.positions)
        release_memory(run.base.device)
        if run.base.activations.recompute_more():
            log.info("pass out of memory datums=%d tokens=%d next=recompute", len(short.datums), short.positions)
            continue
        if is_replay or len(short.datums) <= 1 or tokens == 1:  # datums that begin alike may stay together
            raise _refusal(run, short, is_replay=is_replay)
        tokens = min(tokens, short.positions) // 2
        log.warning(
            "pass out of memory datums=%d tokens=%d next_tokens_per_micro_batch=%d",
            *(len(short.datums), short.positions, tokens),
        )
        yield


def _choose_tokens(run: TrainedRun, request: Pass, tokens: int, free_bytes: int) -> int:
    """The number of tokens, halved until a micro-batch is predicted to fit."""
    lengths = [len(datum.tokens) for datum in request.data]
    longest = max(lengths, default=0)
    if request.forward_only or not 0 < longest <= run.base.max_context or run.base.process_group.size > 1:
        return tokens

    def needed(limit: int) -> float:
        sequences = max(1, min(sum(lengths), limit) // longest)
        return _least_bytes(run, sequences, longest)

    while tokens > longest and needed(tokens) > free_bytes * _TOLERANCE:
        tokens //= 2
    if (least := needed(longest)) > free_bytes * _TOLERANCE:
        raise BadRequest(
            f"datum {lengths.index(longest)} does not fit into memory: it has {longest} tokens, its activations need "
            f"{format_size(round(least))} at least, and {format_size(free_bytes)} are free. At most about "
            f"{round(longest * free_bytes / least):,} tokens fit. Nothing was computed, and the run is as it was. Send "
            "shorter datums, or unload other runs."
        )
    return tokens


def _describe_need(run: TrainedRun, tokens: int, free: str) -> str:
    try:
        least = _least_bytes(run, 1, tokens)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return ""  # there is not even memory for the short sequences that are measured
    return f" Its activations need {format_size(round(least))} at least{free}."


def _least_bytes(run: TrainedRun, sequences: int, tokens: int) -> float:
    base = run.base

    def measured(length: int) -> torch.Tensor:
        return base.hidden_states(torch.zeros(1, length, dtype=torch.int64, device=base.device))

    with torch.enable_grad(), run.trained.applied():
        return base.activations.least_bytes(sequences, tokens, measured)


def _refusal(run: TrainedRun, short: PassOutOfMemory, *, is_replay: bool) -> RequestError:
    free_bytes = free_memory(run.base.device)
    free = "" if free_bytes is None else f", and {format_size(free_bytes)} are free"
    if is_replay:
        return ServerFailure(
            f"the replay of a pass ran out of memory: its micro-batch of {len(short.datums)} datums with "
            f"{short.positions} tokens does not fit{free}. Other micro-batches would give other bits; start the server "
            "with more memory."
        )
    if not short.datums:
        needed = format_size(4 * run.parameter_count)
        return BadRequest(
            f"the gradient of the run does not fit into memory: it needs {needed}{free}. Nothing of the pass was kept. "
            "Unload other runs, or create the run with a smaller rank."
        )
    return BadRequest(
        f"datum {short.datums[0]} does not fit into memory: it has {short.positions} tokens and was computed alone."
        f"{_describe_need(run, short.positions, free)} Nothing of the pass was kept, and the run is as it was. Send "
        "shorter datums, or unload other runs."
    )
