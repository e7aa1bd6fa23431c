"""Baselines: what a user without a server writes, in plain PyTorch, PEFT and transformers.

Runs in a process of its own; see ``benchmarks/harness/remote.py``.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

Tokens = list[int]


class Baselines:
    """All of them; holds the model it was asked for last."""

    def __init__(self, *, threads: int) -> None:
        torch.set_num_threads(threads)
        disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers'
        self._training: BareTraining | None = None
        self._sampling: BareSampling | None = None

    def prepare_training(self, *, directory: Path, rank: int, learning_rate: float) -> None:
        self._training = self._sampling = None
        self._training = BareTraining(directory, rank=rank, learning_rate=learning_rate)

    def prepare_sampling(self, *, directory: Path) -> None:
        self._training = self._sampling = None
        self._sampling = BareSampling(directory)

    def train(self, *, sequences: list[Tokens], steps: int) -> dict[str, float]:
        assert self._training is not None, "prepare_training comes first"
        return self._training.train(sequences, steps=steps)

    def step_optimizer(self, *, sequences: list[Tokens], count: int) -> dict[str, float]:
        assert self._training is not None, "prepare_training comes first"
        return self._training.step_optimizer(sequences, count=count)

    def generate(self, *, prompts: list[Tokens], samples: int, max_tokens: int, together: bool) -> dict[str, float]:
        assert self._sampling is not None, "prepare_sampling comes first"
        return self._sampling.generate(prompts, samples=samples, max_tokens=max_tokens, together=together)


class BareTraining:
    """A loop of forward, backward and AdamW over a LoRA on all linear layers inside the blocks."""

    def __init__(self, directory: Path, *, rank: int, learning_rate: float) -> None:
        base = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        config = LoraConfig(r=rank, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        self._model = get_peft_model(base, config)
        self._trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._trained, lr=learning_rate, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0
        )

    def train(self, sequences: list[Tokens], *, steps: int) -> dict[str, float]:
        """Seconds for all steps, and the loss of the first."""
        started = perf_counter()
        losses = [self._step(sequences) for _ in range(steps)]
        return {"seconds": perf_counter() - started, "loss": losses[0]}

    def step_optimizer(self, sequences: list[Tokens], *, count: int) -> dict[str, float]:
        """Median seconds of the optimizer alone, on a gradient that is there."""
        self._step(sequences)
        torch.autograd.backward(self._loss(sequences))
        times = []
        for _ in range(count):
            started = perf_counter()
            self._optimizer.step()
            times.append(perf_counter() - started)
        self._optimizer.zero_grad()
        return {"seconds": median(times)}

    def _step(self, sequences: list[Tokens]) -> float:
        loss = self._loss(sequences)
        torch.autograd.backward(loss)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.detach())

    def _loss(self, sequences: list[Tokens]) -> torch.Tensor:
        tokens = torch.tensor(sequences)
        logits = self._model(input_ids=tokens[:, :-1], use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")


class BareSampling:
    """``transformers.generate`` with its KV cache; prompts of one length, so that it pads nothing."""

    def __init__(self, directory: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).train(mode=False)
        self._model.generation_config.eos_token_id = None  # all sequences get all their tokens

    def generate(self, prompts: list[Tokens], *, samples: int, max_tokens: int, together: bool) -> dict[str, float]:
        """Seconds and tokens made: all prompts in one batch, or one prompt with its samples after the other."""
        groups = [prompts] if together else [[prompt] for prompt in prompts]
        tokens = 0
        cpu, started = process_time(), perf_counter()
        for group in groups:
            prompt_tokens = torch.tensor(group)
            made = self._model.generate(
                prompt_tokens,
                attention_mask=torch.ones_like(prompt_tokens),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=max_tokens,
                num_return_sequences=samples,
            )
            tokens += made.shape[0] * (made.shape[1] - prompt_tokens.shape[1])
        used = process_time() - cpu
        return {"seconds": perf_counter() - started, "cpu_seconds": used, "tokens": float(tokens)}
