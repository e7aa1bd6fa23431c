# tensors carry their axes
"""Forward and backward through one micro-batch on each process.

The backbone runs once. The output layer, whose result is vocabulary-sized, runs on a few rows at a time: each chunk's
logits become log-probabilities, a loss, the loss's gradient and the gradient of the hidden states before the logits of
the next chunk are computed. Datums are packed without padding where the model allows it. Elsewhere padding is on the
right; models are causal, so padding needs no mask, and it never reaches the output layer.

Shapes: B datums, T time, D hidden, R positions of all datums, S rows of the output layer (one for positions that share
it), K targets, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Final

import torch
from torch.nn.utils.rnn import pad_sequence

from chockstone.backends.losses.custom_loss import CustomLoss
from chockstone.backends.losses.loss_meter import PassBudget
from chockstone.backends.losses.losses import Loss
from chockstone.backends.training.allocator import POSITIONS, returning_memory
from chockstone.backends.training.base_model import BaseModel
from chockstone.backends.training.examples import Example, concatenate
from chockstone.backends.training.packing.attention import attending
from chockstone.backends.training.packing.layout import pack
from chockstone.backends.training.packing.scored_rows import ScoredRows
from chockstone.backends.training.pass_results import BatchResult, gather_results
from chockstone.backends.training.routing import padded_rows, place_routing
from chockstone.wire.failures import BadRequest

_LOGITS_BYTES: Final = 64 << 20


def run_shares(
    base: BaseModel, shares: Sequence[Sequence[Example]], loss: Loss, budget: PassBudget
) -> Generator[None, None, BatchResult]:
    """Run one micro-batch on each process; ``shares`` are by rank. Returns all results, in the order of the shares.

    If gradients are enabled, this includes the backward pass: each process adds the gradients of its own examples to
    the leaves. Yields where other tasks may use the model: between the datums of an expensive custom loss, if there
    are no other processes to stay in step with.
    """
    mine = shares[base.process_group.rank]
    if base.computing is nullcontext:
        return (yield from _run_micro_batch(base, mine, loss, budget))
    with base.computing():
        if mine:
            result = _finish(_run_micro_batch(base, mine, loss, budget))
        else:
            _join_collectives(base, next(share for share in shares if share)[0])
            result = BatchResult([], [], {}, 0, [])
    return gather_results(base.process_group, result, shares, loss)


def _finish(steps: Generator[None, None, BatchResult]) -> BatchResult:
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: BatchResult = ended.value
            return result


def _run_micro_batch(
    base: BaseModel, examples: Sequence[Example], loss: Loss, budget: PassBudget
) -> Generator[None, None, BatchResult]:
    batch = _Batch(base, examples, loss, budget)
    with returning_memory(batch.is_large):
        hidden_SD = batch.hidden_states()
    grad_SD = torch.zeros_like(hidden_SD)
    refusal: BadRequest | None = None
    try:
        yield from batch.through_head(hidden_SD.detach(), grad_SD)
    except BadRequest as error:
        refusal = error
    base.process_group.raise_together(refusal)  # no process runs the backward pass alone
    if hidden_SD.requires_grad:
        with (
            attending(batch.packed),  # layers may be computed again
            base.routers.forced(batch.routing_LNK),
            returning_memory(batch.is_large),
        ):
            torch.autograd.backward(hidden_SD, grad_SD)
    return batch.result()


def _join_collectives(base: BaseModel, example: Example) -> None:
    """Run the layers without an example of our own: the other processes need our shards of the weights."""
    hidden_BTD = base.trained_states(example.tokens_N[None, :1].to(base.device))
    base.process_group.raise_together(None)
    if hidden_BTD.requires_grad:
        torch.autograd.backward(hidden_BTD, torch.zeros_like(hidden_BTD))


class _Batch:
    def __init__(self, base: BaseModel, examples: Sequence[Example], loss: Loss, budget: PassBudget) -> None:
        self.base = base
        self.examples = examples
        self.loss = loss
        self.budget = budget
        self.lengths = [len(example.tokens_N) for example in examples]
        is_packed = base.packs and len(examples) > 1
        self.packed = pack([example.content for example in examples], base.device) if is_packed else None
        targets_RK = torch.cat([example.targets_NK for example in examples]).to(base.device)
        self.scored = ScoredRows(None if self.packed is None else self.packed.rows_R)
        count = sum(self.lengths) if self.packed is None else len(self.packed.tokens_F)
        self.is_large = base.device.type == "cpu" and (count > POSITIONS or base.activations.always_recomputes)
        self.targets_SK = self.scored.write(targets_RK, count)
        self.logprobs_SK = torch.zeros(self.targets_SK.shape, device=base.device)
        self.logprobs_RK = torch.zeros(targets_RK.shape, device=base.device)
        self.inputs = {} if loss.whole_datum else concatenate(examples, base.device)
        self.terms_RK = torch.zeros_like(self.logprobs_RK)
        self.routing_LNK = self._routing()
        self.losses: list[float] = []
        self.metrics: dict[str, float] = {}

    def hidden_states(self) -> torch.Tensor:
        if self.packed is not None:
            return self.base.trained_states(self.packed.tokens_F[None], self.routing_LNK, self.packed)[0]
        tokens_BT = pad_sequence([example.tokens_N for example in self.examples], batch_first=True)
        hidden_BTD = self.base.trained_states(tokens_BT.to(self.base.device), self.routing_LNK)
        if min(self.lengths) == tokens_BT.shape[1]:
            return hidden_BTD.flatten(0, 1)
        return torch.cat([hidden_TD[:length] for hidden_TD, length in zip(hidden_BTD, self.lengths, strict=True)])

    def _routing(self) -> torch.Tensor | None:
        if self.packed is None:
            rows_R, count = padded_rows(self.lengths), max(self.lengths) * len(self.lengths)
        else:
            count = len(self.packed.tokens_F)
            rows_R = torch.arange(count) if self.packed.rows_R is None else self.packed.rows_R.cpu()
        return place_routing(self.examples, rows_R, count=count, device=self.base.device)

    def through_head(self, hidden_SD: torch.Tensor, grad_SD: torch.Tensor) -> Generator[None, None, None]:
        """Fill in log-probabilities, losses and the gradient of the hidden states, where it is not zero."""
        chunks = list(self._chunks())
        if self.loss.whole_datum:
            first = self._fill_logprobs(hidden_SD, chunks)
            everything = slice(0, len(self.logprobs_SK))
            self.logprobs_RK = self.scored.read(self.logprobs_SK, slice(None))
            grad_SK = self.scored.add((yield from self._by_datum()), slice(None), everything)
            for rows in chunks:
                if _is_wanted(grad_SK[rows]):
                    grad_SD[rows] = (first or _Chunk(self, hidden_SD, rows)).backward(grad_SK[rows])
            return
        for rows in chunks:
            chunk = _Chunk(self, hidden_SD, rows)
            grad_SK = self._by_row(rows)
            if _is_wanted(grad_SK):
                grad_SD[rows] = chunk.backward(grad_SK)

    def _fill_logprobs(self, hidden_SD: torch.Tensor, chunks: Sequence[slice]) -> _Chunk | None:
        """Returns the chunk if there is only one. Of several chunks none is kept."""
        if len(chunks) == 1:
            return _Chunk(self, hidden_SD, chunks[0])
        with torch.no_grad():
            for rows in chunks:
                _Chunk(self, hidden_SD, rows)
        return None

    def _chunks(self) -> Iterator[slice]:
        height = max(1, _LOGITS_BYTES // (4 * self.base.head.out_features))
        count = len(self.targets_SK)
        parts = -(-count // height)
        for part in range(parts):  # heights differ by at most one
            yield slice(count * part // parts, count * (part + 1) // parts)

    def _by_row(self, rows: slice) -> torch.Tensor:
        """Compute the loss of the positions that read these rows. Returns its gradient with respect to their
        log-probabilities."""
        readers = self.scored.readers(rows)
        inputs = {name: value[readers] for name, value in self.inputs.items()}
        logprobs = self.scored.read(self.logprobs_SK, readers)
        terms, grad = _differentiate(self.loss, logprobs, inputs)
        self.logprobs_RK[readers], self.terms_RK[readers] = logprobs, terms
        return self.scored.add(grad, readers, rows)

    def _by_datum(self) -> Generator[None, None, torch.Tensor]:
        """Compute the loss of each datum. Returns its gradient with respect to all log-probabilities."""
        grad_RK = torch.zeros_like(self.logprobs_RK)
        rows = (torch.split(values, self.lengths) for values in (self.logprobs_RK, self.terms_RK, grad_RK))
        for example, logprobs_NK, terms_NK, grad_NK in zip(self.examples, *rows, strict=True):
            inputs = {name: value.to(self.base.device) for name, value in example.inputs.items()}
            if isinstance(self.loss, CustomLoss):
                grad_NK.copy_(self._custom(self.loss, example.index, logprobs_NK, inputs))
                if self.budget.is_turn_over():
                    yield
                continue
            terms, grad = _differentiate(self.loss, logprobs_NK, inputs)
            terms_NK.copy_(terms)
            grad_NK.copy_(grad)
            self.losses.append(float(terms.sum(dtype=torch.float64)))
        return grad_RK

    def _custom(
        self, loss: CustomLoss, index: int, logprobs_NK: torch.Tensor, inputs: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        is_trained = torch.is_grad_enabled()
        meter = self.budget.meter()
        try:
            evaluated = loss.differentiate(logprobs_NK, inputs, meter)
            if is_trained and not bool(torch.isfinite(evaluated.gradient).all()):
                raise BadRequest(
                    "the gradient of the custom loss is not finite. Look for a square root, logarithm, norm or "
                    "quotient of 0, and for large exponents."
                )
        except BadRequest as error:
            raise BadRequest(f"datum {index}: {error}") from error
        self.budget.spend(0 if meter is None else meter.work)
        self.losses.append(float(evaluated.loss.double()))
        for name, value in evaluated.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + float(value)
        return evaluated.gradient

    def result(self) -> BatchResult:
        terms = [] if isinstance(self.loss, CustomLoss) else self._by_example(self.terms_RK)
        if not self.loss.whole_datum:
            self.losses = [float(piece.sum(dtype=torch.float64)) for piece in terms]
        logprobs = self._by_example(self.logprobs_RK)
        return BatchResult(logprobs, self.losses, self.metrics, self.budget.work_here, terms)

    def _by_example(self, values_RK: torch.Tensor) -> list[torch.Tensor]:
        pieces = torch.split(values_RK.cpu(), self.lengths)
        return [piece.reshape(example.shape) for piece, example in zip(pieces, self.examples, strict=True)]


def _differentiate(
    loss: Loss, logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The terms of a built-in loss, and the gradient of their sum."""
    leaf = logprobs.detach().requires_grad_()
    with torch.enable_grad():
        terms, _ = loss(leaf, inputs)
        (grad,) = torch.autograd.grad(terms.sum(), leaf)
    return terms.detach(), grad


def _is_wanted(grad: torch.Tensor) -> bool:
    """Rows with zero gradient, such as those of a prompt, need no backward pass."""
    return torch.is_grad_enabled() and bool(grad.any())


class _Chunk:
    """The logits of some rows. The constructor fills in the log-probabilities of the rows."""

    def __init__(self, batch: _Batch, hidden_SD: torch.Tensor, rows: slice) -> None:
        self._targets = batch.targets_SK[rows]
        self._hidden = hidden_SD[rows].detach().requires_grad_(torch.is_grad_enabled())
        self._logits = batch.base.logits(self._hidden)
        self._all_logprobs = torch.log_softmax(self._logits.detach(), dim=-1)
        batch.logprobs_SK[rows] = self._all_logprobs.gather(1, self._targets)

    def backward(self, grad_SK: torch.Tensor) -> torch.Tensor:
        """The gradient of the hidden states from that of the log-probabilities. Call this once."""
        grad_logits = self._all_logprobs.exp_().mul_(-grad_SK.sum(dim=1, keepdim=True))
        grad_logits.scatter_add_(1, self._targets, grad_SK)
        torch.autograd.backward(self._logits, grad_logits)
        assert self._hidden.grad is not None
        return self._hidden.grad
