"""TRL: its SFTTrainer with a LoRA, in a process of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import SFTConfig, SFTTrainer

from benchmarks.models.mixes import Sequence
from benchmarks.models.trainers import LEARNING_RATE, RANK

_STEPS = 3  # of one call; the first two warm up


class TrlTrainer:
    def __init__(self, *, directory: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers'
        self._directory = directory

    def step(self, *, sequences: list[Sequence]) -> dict[str, float]:
        """Seconds of one step on all sequences, and its loss per token. Each call makes a new trainer."""
        clock = _Clock()
        with tempfile.TemporaryDirectory() as scratch:
            trainer = SFTTrainer(
                model=AutoModelForCausalLM.from_pretrained(self._directory, dtype=torch.float32),
                processing_class=AutoTokenizer.from_pretrained(self._directory),
                train_dataset=Dataset.from_dict({"input_ids": [each.tokens for each in sequences] * _STEPS}),
                peft_config=LoraConfig(r=RANK, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
                callbacks=[clock],
                args=SFTConfig(
                    output_dir=scratch,
                    per_device_train_batch_size=len(sequences),
                    max_steps=_STEPS,
                    learning_rate=LEARNING_RATE,
                    max_length=None,
                    gradient_checkpointing=False,
                    use_cpu=True,
                    bf16=False,
                    save_strategy="no",
                    report_to="none",
                    disable_tqdm=True,
                ),
            )
            trainer.train()
        return {"seconds": clock.seconds[-1]}


class _Clock(TrainerCallback):
    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:  # Any: as transformers passes them
        self._began = perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:  # Any: as above
        self.seconds.append(perf_counter() - self._began)
