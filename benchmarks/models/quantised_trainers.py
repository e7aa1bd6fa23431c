"""Trainers on a quantised base, and a small model that has learned something, in processes of their own.

See ``benchmarks/harness/remote.py``.
"""

from __future__ import annotations

import random
from pathlib import Path
from time import perf_counter

import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from benchmarks.models.mixes import Sequence
from benchmarks.models.trainers import RANK, OwnTrainer, PeakMemory, datum_of
from chockstone.backends.run_spec import BasePrecision, RunSpec
from chockstone.backends.training.base_model import BaseModel, load_base_model
from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.run import TrainedRun
from chockstone.cli.models.making import make_model
from chockstone.sampling.model import SampledModel
from chockstone.sampling.sampler import Sampler
from chockstone.wire.codecs.passes import Pass
from chockstone.wire.codecs.sample_request import decode_sample

REPOSITORY = Path(__file__).resolve().parents[2]
_WINDOW = 128  # tokens of a piece of text
_BATCH = 8  # pieces of a step
_HELD_BACK = 32  # pieces that are never trained on
_LEARNING_RATE = 1e-3


class QuantisedTrainer(OwnTrainer):
    """``OwnTrainer`` on a base of another precision. It can sample, too."""

    def __init__(self, *, directory: Path, threads: int, base_precision: BasePrecision, dtype: str = "auto") -> None:
        torch.set_num_threads(threads)
        disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers'
        self._memory = PeakMemory()
        self._base = load_base_model("model", directory, dtype=dtype, base_precision=base_precision)
        self._load_peak = self._memory.read()
        self._run = TrainedRun(self._base, RunSpec(rank=RANK, seed=0, train_unembed=False))
        self._sampled: SampledModel | None = None

    def facts(self) -> dict[str, float]:
        return {"weight_bytes": float(self._base.weight_bytes), "load_peak_bytes": float(self._load_peak)}

    def sample(self, *, samples: int, tokens: int) -> float:
        """Seconds for samples of one short prompt with the run's adapter."""
        if self._sampled is None:
            base = self._base
            self._sampled = SampledModel(base.model, base.tokenizer, max_context=base.max_context)
        sampler = Sampler()
        request = {
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(range(20, 36))}]},
            "num_samples": samples,
            "sampling_params": {"max_tokens": tokens, "temperature": 1.0},
        }
        adapter = self._run.adapter()
        sampler.add("sample", self._sampled, adapter, decode_sample(request), seed=1)
        started = perf_counter()
        while sampler.has_work():
            sampler.step()
        return perf_counter() - started

    def tune(self, *, steps: int) -> dict[str, float]:
        """The loss per token of text that was held back, before and after steps on one page."""
        pieces, held_back = _text(self._base.tokenizer)
        before = self._loss(held_back)
        for step in range(steps):
            batch = [pieces[(step * _BATCH + number) % (4 * _BATCH)] for number in range(_BATCH)]
            self._pass(_request(batch))
            self._run.optim_step(OptimStep(learning_rate=_LEARNING_RATE))
        trained = self._loss(pieces[: 4 * _BATCH])
        return {"loss_before": before, "loss_trained": trained, "loss_after": self._loss(held_back)}

    def _loss(self, pieces: list[Sequence]) -> float:
        return self._pass(_request(pieces, forward_only=True)) / sum(piece.positions for piece in pieces)


class Pretraining:
    """Trains all weights of a small random model on the documentation of this repository."""

    def __init__(self, *, directory: Path, threads: int) -> None:
        del directory  # of the large model
        torch.set_num_threads(threads)
        disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers'

    def train(self, *, out: Path, steps: int) -> float:
        """Writes the model to ``out``. Returns the loss per token of the last step."""
        make_model(out, parameters=4_000_000)
        base = load_base_model("model", out)
        trainer = _FullTrainer(base)
        pieces, _ = _text(base.tokenizer)
        draw = random.Random(5)
        loss = 0.0
        for _ in range(steps):
            batch = draw.sample(pieces, _BATCH)
            loss = trainer.learn(batch) / sum(piece.positions for piece in batch)
        trainer.save(out)
        return loss


class _FullTrainer(OwnTrainer):
    def __init__(self, base: BaseModel) -> None:
        self._run = TrainedRun(base, RunSpec(rank=0, seed=0))
        self._memory = PeakMemory()

    def learn(self, pieces: list[Sequence]) -> float:
        loss = self._pass(_request(pieces))
        self._run.optim_step(OptimStep(learning_rate=_LEARNING_RATE))
        return loss

    def save(self, directory: Path) -> None:
        tensors = {name: weight.contiguous() for name, weight in self._run.weights().items()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _request(pieces: list[Sequence], *, forward_only: bool = False) -> Pass:
    return Pass("run", 1, tuple(map(datum_of, pieces)), "cross_entropy", {}, forward_only=forward_only)


def _text(tokenizer: PreTrainedTokenizerBase) -> tuple[list[Sequence], list[Sequence]]:
    """Pieces of the documentation in a random order, and those that are held back."""
    pages = sorted((REPOSITORY / "docs").rglob("*.md"))
    tokens: list[int] = tokenizer.encode("\n".join(page.read_text() for page in pages))
    starts = range(0, len(tokens) - _WINDOW, _WINDOW)
    pieces = [Sequence(tokens[start : start + _WINDOW], [1.0] * (_WINDOW - 1)) for start in starts]
    random.Random(3).shuffle(pieces)
    return pieces[_HELD_BACK:], pieces[:_HELD_BACK]
