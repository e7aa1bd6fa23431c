"""Train a small model with the Hugging Face Trainer, kill it whenever you like, and run it again: it resumes.

python examples/hf_trainer.py ./hf-run              # press Ctrl-C, or kill -9, and run it again
torchrun --nproc-per-node 2 examples/hf_trainer.py ./hf-run
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from chockstone.integrations.hf_trainer import attach


class ShowLosses(TrainerCallback):
    """Prints each loss, and gives you time to kill the training."""

    def __init__(self, pause_seconds: float) -> None:
        self._pause_seconds = pause_seconds

    def on_log(self, args: Any, state: Any, control: Any, **facts: Any) -> None:  # noqa: ARG002  # as the host calls it
        logs = facts.get("logs") or {}
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']:.6f}", flush=True)
            time.sleep(self._pause_seconds)


def make_trainer(root: Path, *, steps: int, pause_seconds: float) -> Trainer:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        attention_dropout=0.1,  # so that the random generators matter
    )
    rows = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(0, 256, (64, 32))]
    arguments = TrainingArguments(
        output_dir=str(root / "output"),
        max_steps=steps,
        save_steps=10,
        save_total_limit=3,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    return Trainer(
        model=LlamaForCausalLM(config), args=arguments, train_dataset=rows, callbacks=[ShowLosses(pause_seconds)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="directory of the run")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps (default: 100)")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds to wait after each step (default: 0.05)")
    asked = parser.parse_args()

    trainer = make_trainer(asked.root, steps=asked.steps, pause_seconds=asked.pause)
    checkpoints = attach(trainer, asked.root / "checkpoints")
    trainer.train(resume_from_checkpoint="auto")
    if trainer.is_world_process_zero():
        print(checkpoints.receipt or "a fresh start", flush=True)


if __name__ == "__main__":
    main()
