"""The checks: each makes its own model, does one thing with it, and returns numbers for the report.

A check raises if a number is not what it should be. Each runs in a process of its own.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.families.stages import StageFailed, finish, run_stages
from benchmarks.gpu_check.scale import Scale, write_llama, write_mixture
from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.base_model import BaseModel, load_base_model
from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.run import TrainedRun
from chockstone.backends.worker.parts import collect_parts
from chockstone.backends.worker.sampler_weights import run_weights
from chockstone.checkpoints import Archive, Checkpointer, load_state
from chockstone.sampling.model import SampledModel
from chockstone.sampling.sampler import Sampler
from chockstone.wire.codecs.passes import Datum, Pass, PassResult
from chockstone.wire.codecs.samples import SampleRequest, SampleResult, SamplingParams

Numbers = dict[str, str]
_FAMILIES: Final = ("gemma3_text", "gpt2", "mistral", "qwen3_next", "deepseek_v3")
_REDUCED_FAMILIES: Final = ("gemma3_text",)


class CheckSkipped(Exception):
    """The check has nothing to do on this machine."""


@dataclass(frozen=True, slots=True)
class Place:
    scale: Scale
    directory: Path

    def load(self, model: Path, *, dtype: str | None = None, **options: Any) -> BaseModel:
        return load_base_model("check", model, device=self.scale.device, dtype=dtype or self.scale.dtype, **options)


def load_model(place: Place) -> Numbers:
    model = write_llama(place.directory / "model", place.scale)
    with _measured(place.scale) as used:
        base = place.load(model)
    weights = sum(weight.nbytes for weight in base.model.parameters())
    return {"weights": _mib(weights), "loaded in": f"{used['seconds']:.1f} s"} | _memory(used)


def step_lora(place: Place) -> Numbers:
    base = place.load(write_llama(place.directory / "model", place.scale))
    return _train(place, TrainedRun(base, RunSpec(rank=16, seed=1)))


def step_full(place: Place) -> Numbers:
    base = place.load(write_llama(place.directory / "model", place.scale, **place.scale.small()))
    return _train(place, TrainedRun(base, RunSpec(rank=0, seed=1)))


def train_long_context(place: Place) -> Numbers:
    """The same losses with and without activation checkpointing, and less memory with it."""
    model = write_llama(place.directory / "model", place.scale, **place.scale.small())
    numbers: Numbers = {"tokens": str(place.scale.long_tokens)}
    losses, peaks = {}, {}
    for mode in ("off", "on"):
        base = place.load(model, activation_checkpointing=mode)
        run = TrainedRun(base, RunSpec(rank=16, seed=1))
        with _measured(place.scale) as used:
            losses[mode] = _pass(run, _datum(place.scale, place.scale.long_tokens)).metrics["loss:sum"]
        peaks[mode] = used["peak"]
        numbers[f"peak, {mode}"] = _mib(used["peak"]) if used["peak"] else "not measured"
    if losses["on"] != losses["off"]:
        raise StageFailed(f"the loss is {losses['on']} with activation checkpointing, {losses['off']} without")
    if peaks["off"] and peaks["on"] > 0.7 * peaks["off"]:
        raise StageFailed(f"activation checkpointing saves little: {numbers}")
    return numbers


def sample_as_trained(place: Place) -> Numbers:
    """The sampler's log-probabilities are the trainer's."""
    base = place.load(write_llama(place.directory / "model", place.scale))
    run = TrainedRun(base, RunSpec(rank=16, seed=1))
    _pass(run, _datum(place.scale, place.scale.tokens))
    run.optim_step(OptimStep(learning_rate=1e-3))
    return _compare_samples(place, run)


def restore_exactly(place: Place) -> Numbers:
    """A restored run has the losses of the run that was saved, bit for bit."""
    base = place.load(write_llama(place.directory / "model", place.scale, **place.scale.small()))
    for rank in (16, 0):
        run = TrainedRun(base, RunSpec(rank=rank, seed=1))
        _steps(place, run, 2)
        with Checkpointer(str(place.directory / "archives")) as checkpointer:
            checkpointer.save(collect_parts(run, "weights").state, name=f"rank-{rank}", kind="weights").result()
        again = TrainedRun(base, RunSpec(rank=rank, seed=1))
        with Archive.open(place.directory / "archives" / f"rank-{rank}.tar") as archive:
            again.load(load_state(archive), with_optimizer=True)
        if (expected := _steps(place, run, 2)) != (found := _steps(place, again, 2)):
            raise StageFailed(f"rank {rank}: losses {found} after the restore, {expected} without")
    return {"losses": "equal bits, LoRA and full"}


def train_mixture(place: Place) -> Numbers:
    """A mixture of experts: load, train, sample."""
    base = place.load(write_mixture(place.directory / "model", place.scale))
    run = TrainedRun(base, RunSpec(rank=8, seed=1, train_mlp=_adapts_mlp(base)))
    return _train(place, run) | _compare_samples(place, run)


def batch_mixed_lengths(place: Place) -> Numbers:
    """Sequences of different lengths in one pass have the log-probabilities that each has alone."""
    base = place.load(write_llama(place.directory / "model", place.scale, **place.scale.small()))
    run = TrainedRun(base, RunSpec(rank=16, seed=1))
    lengths = [max(5, place.scale.tokens // divisor) for divisor in (1, 2, 3, 5, 8, 13)]
    data = [_datum(place.scale, length, seed=length) for length in lengths]
    with _measured(place.scale) as used:
        together = _pass(run, *data).logprobs
    pairs = zip(data, together, strict=True)
    gap = max(float(np.abs(_pass(run, one, forward_only=True).logprobs[0] - found).max()) for one, found in pairs)
    if not gap <= place.scale.tolerance:
        raise StageFailed(f"log-probabilities in a batch and alone differ by {gap:.1e}")
    packs = "yes" if getattr(base, "packs", False) else "no"
    return {"packed": packs, "gap": f"{gap:.1e}", "tokens/s": f"{sum(lengths) / used['seconds']:,.0f}"}


def predict_memory(place: Place) -> Numbers:
    """The memory plan of a step against the measured peak, on CUDA."""
    try:
        planning: Any = import_module("chockstone.backends.planning.outline")
    except ModuleNotFoundError as error:
        raise CheckSkipped("this version has no memory plan") from error
    model = write_llama(place.directory / "model", place.scale, **place.scale.small())
    spec = RunSpec(rank=16, seed=1)
    outline = planning.ModelOutline(model, dtype=place.scale.dtype, device=place.scale.device)
    tokens = place.scale.tokens
    predicted = outline.pass_bytes(outline.make_run(spec), sequences=1, tokens=tokens, recomputes=False)
    run = TrainedRun(place.load(model, activation_checkpointing="off"), spec)
    _pass(run, _datum(place.scale, tokens))
    run.optim_step(OptimStep(learning_rate=1e-3))
    before = 0.0 if place.scale.is_reduced else float(torch.cuda.memory_allocated())
    with _measured(place.scale) as used:
        _pass(run, _datum(place.scale, tokens))
    if place.scale.is_reduced:
        return {"predicted": _mib(predicted), "measured": "on CUDA only"}
    ratio = predicted / (used["peak"] - before)
    if not 0.8 <= ratio <= 1.25:  # of a device with other kernels than those that were planned for
        raise StageFailed(f"predicted {_mib(predicted)}, measured {_mib(used['peak'] - before)}")
    return {"predicted": _mib(predicted), "measured": _mib(used["peak"] - before), "ratio": f"{ratio:.2f}"}


def train_quantised(place: Place) -> Numbers:
    """LoRA on 8-bit and 4-bit base weights: losses near those of the base, and samples that agree."""
    if "base_precision" not in inspect.signature(load_base_model).parameters:
        raise CheckSkipped("this version has no quantised bases")
    model = write_llama(place.directory / "model", place.scale)
    losses, numbers = {}, {}
    for precision, bound in (("auto", 0.0), ("8bit", 0.02), ("4bit", 0.2)):
        base = place.load(model, base_precision=precision)
        run = TrainedRun(base, RunSpec(rank=16, seed=1))
        losses[precision] = _steps(place, run, 2)[0]
        gap = abs(losses[precision] / losses["auto"] - 1)
        if gap > bound:
            raise StageFailed(f"{precision}: the loss differs by {gap:.1%}")
        numbers[precision] = f"loss {gap:.2%} off, gap of samples {_compare_samples(place, run)['gap']}"
    return numbers


def train_families(place: Place) -> Numbers:
    """Tiny models of other families in float32, through all stages of the table of architectures."""
    names = _REDUCED_FAMILIES if place.scale.is_reduced else _FAMILIES
    for name in names:
        found = run_stages(name, place.directory / name, device=place.scale.device)
        if failed := {stage: outcome for stage, outcome in found["stages"].items() if outcome != "ok"}:
            raise StageFailed(f"{name}: {failed}")
    return {"families": ", ".join(names)}


def _adapts_mlp(base: BaseModel) -> bool:
    return any("mlp" in name or "experts" in name for name in base.layers)


def _train(place: Place, run: TrainedRun) -> Numbers:
    tokens = 4 * place.scale.tokens
    _steps(place, run, 1)  # the first step allocates
    with _measured(place.scale) as used:
        losses = _steps(place, run, 3)
    if not losses[-1] < losses[0]:
        raise StageFailed(f"the loss does not fall: {losses}")
    speed = 3 * tokens / used["seconds"]
    return {"loss": f"{losses[0] / tokens:.3f} → {losses[-1] / tokens:.3f}", "tokens/s": f"{speed:,.0f}"} | _memory(
        used
    )


def _steps(place: Place, run: TrainedRun, count: int) -> list[float]:
    losses = []
    data = [_datum(place.scale, place.scale.tokens, seed=index) for index in range(4)]
    for _ in range(count):
        losses.append(_pass(run, *data).metrics["loss:sum"])
        run.optim_step(OptimStep(learning_rate=1e-3))
    return losses


def _compare_samples(place: Place, run: TrainedRun) -> Numbers:
    base = run.base
    shared = SampledModel(base.model, base.tokenizer, max_context=base.max_context)
    weights = run_weights(run, shared)
    request = SampleRequest(
        _datum(place.scale, 32).tokens, 4, SamplingParams(max_tokens=48, seed=5, stops_at_eos=False)
    )
    sampler = Sampler()
    sampler.add("sample", weights.model, weights.adapter, request, seed=1)
    started, outcome = time.monotonic(), None
    while sampler.has_work():
        for finished in sampler.step():
            outcome = finished.outcome
    seconds = time.monotonic() - started
    if not isinstance(outcome, SampleResult):
        raise StageFailed(f"the sample failed: {outcome}")
    gaps = []
    for sequence in outcome.sequences:
        tokens = np.concatenate([request.prompt, sequence.tokens])
        whole = Datum(tokens[:-1].astype(np.int32), {"target_tokens": tokens[1:].astype(np.int64)})
        trained = _pass(run, whole, forward_only=True).logprobs[0][len(request.prompt) - 1 :]
        gaps.append(float(np.abs(trained - sequence.logprobs).max()))
    if not max(gaps) <= place.scale.tolerance:
        raise StageFailed(f"log-probabilities of sampler and trainer differ by {max(gaps):.1e}")
    count = sum(len(sequence.tokens) for sequence in outcome.sequences)
    return {"sampler": type(shared.network).__name__, "gap": f"{max(gaps):.1e}", "sampled/s": f"{count / seconds:,.0f}"}


def _pass(run: TrainedRun, *data: Datum, forward_only: bool = False) -> PassResult:
    return finish(run.apply(Pass("check", 1, data, "cross_entropy", {}, forward_only), {}))


def _datum(scale: Scale, length: int, *, seed: int = 0) -> Datum:
    drawn = np.random.default_rng(seed).integers(3, scale.vocab_size, length + 1)
    return Datum(drawn[:-1].astype(np.int32), {"target_tokens": drawn[1:].astype(np.int64)})


@contextmanager
def _measured(scale: Scale) -> Iterator[dict[str, float]]:
    """Seconds and, on CUDA, the peak of allocated bytes; both are known after the block."""
    used: dict[str, float] = {"seconds": 0.0, "peak": 0.0}
    if not scale.is_reduced:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.monotonic()
    yield used
    if not scale.is_reduced:
        torch.cuda.synchronize()
        used["peak"] = float(torch.cuda.max_memory_allocated())
    used["seconds"] = time.monotonic() - started


def _memory(used: dict[str, float]) -> Numbers:
    return {"peak": _mib(used["peak"])} if used["peak"] else {}


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"


Check = Callable[[Place], Numbers]
CHECKS: Final[dict[str, Check]] = {
    "load": load_model,
    "LoRA step": step_lora,
    "full step": step_full,
    "long context": train_long_context,
    "sampling agrees": sample_as_trained,
    "save and restore": restore_exactly,
    "mixed lengths": batch_mixed_lengths,
    "memory plan": predict_memory,
    "quantised base": train_quantised,
    "mixture of experts": train_mixture,
    "other families": train_families,
}
