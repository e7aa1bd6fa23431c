"""The stages that a family goes through in one process: load, train, sample, save, restore, export."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks.families.tiny_model import WORDS, write_model
from chockstone.backends.export.adapter_files import write_adapter
from chockstone.backends.export.merge import merge_archive
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
from chockstone.wire.failures import BadRequest

TOLERANCE: Final = 1e-4
LENGTHS: Final = (21, 13, 34)
PROMPT: Final = 19  # longer than the window of tiny models
_PARTS: Final = {"train_attn": "attention", "train_mlp": "MLP"}
_STEP: Final = OptimStep(family="adamw", learning_rate=0.01, eps=1e-3)
T = TypeVar("T")


class StageFailed(AssertionError):
    """A stage gave other numbers than it should."""


def finish(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]


def datum(length: int, *, seed: int = 0) -> Datum:
    drawn = np.random.default_rng(seed).integers(3, WORDS, length + 1)
    return Datum(drawn[:-1].astype(np.int32), {"target_tokens": drawn[1:], "weights": np.ones(length, np.float32)})


def run_pass(run: TrainedRun, *data: Datum, forward_only: bool = False) -> PassResult:
    return finish(run.apply(Pass("run", 1, data, "cross_entropy", {}, forward_only), {}, tokens_per_micro_batch=64))


def train(run: TrainedRun, steps: int = 2) -> list[float]:
    losses = []
    for step in range(steps):
        result = run_pass(run, *(datum(length, seed=10 * step + length) for length in LENGTHS))
        losses.append(result.metrics["loss:sum"])
        run.optim_step(_STEP)
    return losses


def make_run(base: BaseModel, *, rank: int) -> TrainedRun:
    """A run that trains whatever of attention, MLP and output layer the model has as layers that can be adapted."""
    return TrainedRun(base, RunSpec(rank=rank, seed=1, **choose_flags(base)))


def choose_flags(base: BaseModel) -> dict[str, bool]:
    flags: dict[str, bool] = {}
    for flag in ("train_attn", "train_mlp"):
        others = {name: False for name in ("train_attn", "train_mlp", "train_unembed") if name != flag}
        try:
            TrainedRun(base, RunSpec(rank=1, seed=1, **others))
        except BadRequest:
            flags[flag] = False
    return flags


class Family:
    """A tiny model of one family in ``directory``, and what the stages leave for those after them."""

    def __init__(self, name: str, directory: Path, *, device: str = "cpu") -> None:
        self.name = name
        self.device = device
        self.directory = directory
        self.model = directory / "model"
        self.notes: dict[str, str] = {}
        self.base: BaseModel
        self.runs: dict[str, TrainedRun] = {}

    def make(self) -> None:
        write_model(self.model, self.name)

    def load(self) -> None:
        self.base = load_base_model(self.name, self.model, device=self.device, dtype="float32")
        if flags := choose_flags(self.base):
            self.notes["LoRA"] = "not on " + " and ".join(_PARTS[flag] for flag in flags)
        self.notes["parameters"] = str(sum(weight.numel() for weight in self.base.model.parameters()))
        spread = float(self._plain(self._load_plain(), datum(PROMPT)).std())
        if not 0.02 < spread < 1e3:
            raise StageFailed(f"the made model is no test: its logits have a standard deviation of {spread:.2g}")

    def train_lora(self) -> None:
        self._train("lora", rank=4)

    def train_full(self) -> None:
        self._train("full", rank=0)

    def sample(self) -> None:
        shared = SampledModel(self.base.model, self.base.tokenizer, max_context=self.base.max_context)
        self.notes["sampler"] = "fused" if type(shared.network).__name__ == "FusedLlama" else "generic"
        for kind, run in self.runs.items():
            weights = run_weights(run, shared)
            sampler = Sampler()
            request = SampleRequest(
                datum(PROMPT).tokens, 2, SamplingParams(max_tokens=16, seed=5), prompt_logprobs=True
            )
            sampler.add("sample", weights.model, weights.adapter, request, seed=1)
            while sampler.has_work():
                for finished in sampler.step():
                    self._compare_sample(run, request, finished.outcome, kind)

    def save_and_restore(self) -> None:
        for kind, run in self.runs.items():
            with Checkpointer(str(self.directory / "archives")) as checkpointer:
                checkpointer.save(collect_parts(run, "weights").state, name=f"{kind}-state", kind="weights").result()
            again = make_run(self.base, rank=run.spec.rank)
            with Archive.open(self.directory / "archives" / f"{kind}-state.tar") as archive:
                again.load(load_state(archive), with_optimizer=True)
            if train(again, 2) != train(run, 2):
                raise StageFailed(f"{kind}: the restored run has other losses")

    def export_adapter(self) -> None:
        from peft import PeftModel

        archive = self._archive("lora", "sampler_weights")
        with Archive.open(archive) as opened:
            write_adapter(opened, self.directory / "adapter")
        expected = self._live(self.runs["lora"])
        adapted = PeftModel.from_pretrained(self._load_plain(), str(self.directory / "adapter"))
        _check("PEFT's logits", self._plain(adapted, datum(PROMPT)), expected)

    def export_merged(self) -> None:
        for kind, run in self.runs.items():
            archive = self._archive(kind, "weights")
            target = self.directory / f"merged-{kind}"
            with Archive.open(archive) as opened:
                merge_archive(opened, self.model, target)
            merged = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).to(self.device)
            _check(f"{kind}: the merged model's logits", self._plain(merged, datum(PROMPT)), self._live(run))

    def _train(self, kind: str, *, rank: int) -> None:
        run = make_run(self.base, rank=rank)
        data = [datum(length, seed=length) for length in LENGTHS]
        result = run_pass(run, *data, forward_only=True)
        plain = self._load_plain()
        for each, logprobs in zip(data, result.logprobs, strict=True):
            every = torch.log_softmax(self._plain(plain, each), -1)
            targets = torch.from_numpy(np.asarray(each.inputs["target_tokens"], np.int64))
            _check(f"{kind}: log-probabilities", torch.from_numpy(logprobs), every.gather(1, targets[:, None])[:, 0])
        before = run.weights()
        before = {name: weight.clone() for name, weight in before.items()}
        train(run, 3)
        after = run.weights()
        still = [name for name, weight in after.items() if torch.equal(weight, before[name])]
        if len(still) == len(after):
            raise StageFailed(f"{kind}: three steps changed nothing")
        if result.metrics["loss:sum"] <= run_pass(run, *data, forward_only=True).metrics["loss:sum"]:
            self.notes[f"{kind} loss"] = "did not fall in three steps"
        self.runs[kind] = run

    def _compare_sample(self, run: TrainedRun, request: SampleRequest, outcome: Any, kind: str) -> None:
        if not isinstance(outcome, SampleResult):
            raise StageFailed(f"{kind}: {outcome}")
        for sequence in outcome.sequences:
            tokens = np.concatenate([request.prompt, sequence.tokens]).astype(np.int32)
            whole = Datum(tokens[:-1], {"target_tokens": tokens[1:].astype(np.int64)})
            trained = run_pass(run, whole, forward_only=True).logprobs[0]
            sampled = np.concatenate([np.asarray(outcome.prompt_logprobs)[1:], sequence.logprobs])
            _check(f"{kind}: log-probabilities of samples", torch.from_numpy(sampled), torch.from_numpy(trained))

    def _archive(self, kind: str, part: str) -> Path:
        parts = collect_parts(self.runs[kind], part)
        with Checkpointer(str(self.directory / "archives")) as checkpointer:
            checkpointer.save(parts.state, name=f"{kind}-{part}", kind=part, files=parts.files).result()
        return self.directory / "archives" / f"{kind}-{part}.tar"

    def _load_plain(self) -> Any:
        return AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32).to(self.device).eval()

    @torch.no_grad()
    def _plain(self, model: Any, one: Datum) -> torch.Tensor:
        tokens_BT = torch.from_numpy(one.tokens).long()[None].to(self.device)
        logits_TV: torch.Tensor = model(input_ids=tokens_BT, use_cache=False).logits[0]
        return logits_TV.float().cpu()

    @torch.no_grad()
    def _live(self, run: TrainedRun) -> torch.Tensor:
        with run._weights.applied():
            return self._plain(self.base.model, datum(PROMPT))


Stage = Callable[[Family], None]
STAGES: Final[dict[str, Stage]] = {
    "make": Family.make,
    "load": Family.load,
    "LoRA": Family.train_lora,
    "full": Family.train_full,
    "sample": Family.sample,
    "restore": Family.save_and_restore,
    "PEFT": Family.export_adapter,
    "merge": Family.export_merged,
}


def run_stages(name: str, directory: Path, *, device: str = "cpu") -> dict[str, Any]:
    """The outcome of each stage: "ok", or what went wrong. Stages go on after one that others do not need."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    family = Family(name, directory, device=device)
    outcomes: dict[str, str] = {}
    for stage, run in STAGES.items():
        try:
            if stage in ("sample", "restore", "merge") and not family.runs:
                raise StageFailed("neither LoRA nor full fine-tuning works")
            if stage == "PEFT" and "lora" not in family.runs:
                raise StageFailed("LoRA does not work")
            run(family)
            outcomes[stage] = "ok"
        except Exception as error:
            outcomes[stage] = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
            if stage in ("make", "load"):
                break
    return {"stages": outcomes, "notes": family.notes}


def _check(what: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    gap = float((actual - expected).abs().max()) / max(1.0, float(expected.abs().max()))
    if not gap <= TOLERANCE:
        raise StageFailed(f"{what} differ by {gap:.1e}")
