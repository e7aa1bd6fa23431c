"""Trainers: LoRA steps on one model, ours and those of PEFT, in a process of their own.

See ``benchmarks/harness/remote.py``. All have the same methods.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from benchmarks.models.mixes import Sequence
from chockstone.backends.run_spec import ActivationCheckpointing, RunSpec
from chockstone.backends.training.base_model import load_base_model
from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.codecs.passes import Datum, Pass

RANK: Final = 32
LEARNING_RATE: Final = 1e-4
ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
EXPERTS: Final = ("experts.gate_up_proj", "experts.down_proj")
_STATUS: Final = Path("/proc/self/status")
_RESET: Final = Path("/proc/self/clear_refs")  # writing 5 resets the peak of the resident memory


class PeakMemory:
    """The largest resident memory since the last ``reset``, beyond what was resident then."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        _RESET.write_text("5")
        self._before = _status_bytes("VmRSS")

    def read(self) -> int:
        return _status_bytes("VmHWM") - self._before


def _status_bytes(name: str) -> int:
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


class OwnTrainer:
    """Our arithmetic as the worker calls it, without server and channel."""

    def __init__(
        self,
        *,
        directory: Path,
        threads: int,
        activation_checkpointing: ActivationCheckpointing = "off",
        packs: bool = True,
    ) -> None:
        """``packs`` False: micro-batches are sorted and padded, as for models that cannot be packed."""
        torch.set_num_threads(threads)
        disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers'
        base = load_base_model("model", directory, activation_checkpointing=activation_checkpointing)
        if not packs:
            base = replace(base, packs=False)
        self._run = TrainedRun(base, RunSpec(rank=RANK, seed=0, train_unembed=False))
        self._memory = PeakMemory()

    def step(self, *, sequences: list[Sequence], repeats: int = 1) -> dict[str, float]:
        """Seconds of all repeats; the loss of the first; the growth of the memory at its peak."""
        request = Pass("run", 1, tuple(map(datum_of, sequences)), "cross_entropy", {}, forward_only=False)
        self._memory.reset()
        losses = []
        started, cpu = perf_counter(), os.times()
        for _ in range(repeats):
            losses.append(self._pass(request))
            self._run.optim_step(OptimStep(learning_rate=LEARNING_RATE))
        return _measured(started, cpu, losses, self._memory)

    def _pass(self, request: Pass) -> float:
        steps = self._run.apply(request, {})
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                return float(ended.value.metrics["loss:sum"])


class PeftTrainer:
    """What a user writes: transformers, PEFT and AdamW. Micro-batches are padded, in the order of the sequences."""

    def __init__(
        self, *, directory: Path, threads: int, gradient_checkpointing: bool = False, experts: bool = False
    ) -> None:
        """``experts``: adapt attention and the fused weights of routed experts, and no other layers."""
        torch.set_num_threads(threads)
        disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers'
        base = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        if gradient_checkpointing:
            base.gradient_checkpointing_enable()
            base.enable_input_require_grads()
            base.train()  # layers that are not in training keep their activations
        targets: dict[str, Any] = {"target_modules": "all-linear"}  # Any: names, or lists of names
        if experts:
            targets = {"target_modules": [*ATTENTION], "target_parameters": [*EXPERTS]}
        config = LoraConfig(r=RANK, lora_alpha=32, task_type="CAUSAL_LM", **targets)
        self._model = get_peft_model(base, config)
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0)
        self._memory = PeakMemory()

    def step(self, *, sequences: list[Sequence], repeats: int = 1, micro_batch: int = 4) -> dict[str, float]:
        """As ``OwnTrainer.step``. ``micro_batch``: how many sequences are computed together."""
        self._memory.reset()
        losses = []
        started, cpu = perf_counter(), os.times()
        for _ in range(repeats):
            losses.append(sum(self._pass(part) for part in _parts(sequences, micro_batch)))
            self._optimizer.step()
            self._optimizer.zero_grad()
        return _measured(started, cpu, losses, self._memory)

    def _pass(self, sequences: list[Sequence]) -> float:
        tokens = pad_sequence([torch.tensor(each.tokens) for each in sequences], batch_first=True)
        weights = pad_sequence([torch.tensor(each.weights) for each in sequences], batch_first=True)
        logits = self._model(input_ids=tokens[:, :-1], use_cache=False).logits  # causal: padding on the right is inert
        terms = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        loss = (terms * weights.flatten()).sum()
        torch.autograd.backward(loss)
        return float(loss.detach())


def _measured(started: float, cpu: os.times_result, losses: list[float], memory: PeakMemory) -> dict[str, float]:
    now = os.times()
    return {
        "seconds": perf_counter() - started,
        "cpu_seconds": now.user + now.system - cpu.user - cpu.system,
        "loss": losses[0],
        "peak_bytes": float(memory.read()),
    }


def _parts(sequences: list[Sequence], size: int) -> Iterator[list[Sequence]]:
    for start in range(0, len(sequences), size):
        yield sequences[start : start + size]


def datum_of(sequence: Sequence) -> Datum:
    inputs = {
        "target_tokens": np.array(sequence.tokens[1:], dtype=np.int64),
        "weights": np.array(sequence.weights, dtype=np.float32),
    }
    return Datum(np.array(sequence.tokens[:-1], dtype=np.int32), inputs)
