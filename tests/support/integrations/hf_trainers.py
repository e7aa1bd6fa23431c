"""Small Trainers on random data. Run as a script, a training that reports its losses, for tests that kill it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

from chockstone.integrations.hf_trainer import attach
from support.killed_training import report
from support.tiny_models import tiny_tokenizer

VOCABULARY = 97


def tiny_llama(*, seed: int = 7, dropout: float = 0.1) -> LlamaForCausalLM:
    """With dropout, so that the random generators matter."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        attention_dropout=dropout,
    )
    return LlamaForCausalLM(config)


def padding_tokenizer() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = "w2"
    return tokenizer


def rows(count: int = 40) -> list[dict[str, torch.Tensor]]:
    made = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, VOCABULARY, (count, 12), generator=made)
    return [{"input_ids": row, "labels": row} for row in tokens]


def arguments(output_dir: Path, **changes: Any) -> dict[str, Any]:
    return {
        "output_dir": str(output_dir),
        "max_steps": 6,
        "save_steps": 2,
        "logging_steps": 1,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        **changes,
    }


class StopAfter(TrainerCallback):
    """Ends a training after a step, as if there were no more time."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == self.step


def tiny_trainer(output_dir: Path, *, model: Any = None, kind: type[Trainer] = Trainer, **changes: Any) -> Trainer:
    made = {key: changes.pop(key) for key in ("callbacks", "compute_metrics", "model_init") if key in changes}
    if "model_init" not in made:
        made["model"] = tiny_llama() if model is None else model
    return kind(
        args=TrainingArguments(**arguments(output_dir, **changes)),
        train_dataset=rows(),
        eval_dataset=rows(6),
        processing_class=padding_tokenizer(),
        data_collator=default_data_collator,
        **made,
    )


def losses_of(trainer: Trainer) -> dict[int, float]:
    """The losses in the log history of a Trainer, by step."""
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


class _Reporter(TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "loss" in logs and state.is_world_process_zero:
            report(state.global_step, logs["loss"])


def tiny_lora() -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(tiny_llama(), LoraConfig(r=4, lora_dropout=0.1, task_type="CAUSAL_LM"))


def _sft_trainer(output_dir: Path, **changes: Any) -> Trainer:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    words = [" ".join(f"w{token}" for token in row["input_ids"].tolist()) for row in rows()]
    return SFTTrainer(
        model=tiny_llama(),
        args=SFTConfig(**arguments(output_dir, **changes), max_length=16, bf16=False),
        train_dataset=Dataset.from_dict({"text": words}),
        processing_class=padding_tokenizer(),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--kind", choices=["full", "lora", "sft", "fsdp"], default="full")
    parser.add_argument("--steps", type=int, default=8)
    asked = parser.parse_args()
    changes: dict[str, Any] = {"max_steps": asked.steps}
    if asked.kind == "fsdp":
        changes |= {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}
    output = asked.root / "output"
    if asked.kind == "sft":
        trainer = _sft_trainer(output, **changes)
    else:
        model = tiny_lora() if asked.kind == "lora" else tiny_llama()
        trainer = tiny_trainer(output, model=model, **changes)
    trainer.add_callback(_Reporter())
    checkpoints = attach(trainer, asked.root / "store")
    trainer.train(resume_from_checkpoint="auto")
    if trainer.is_world_process_zero():
        receipt = checkpoints.receipt
        print(f"resumed {receipt and receipt.step} skipped {len(receipt.skipped) if receipt else 0}", flush=True)


if __name__ == "__main__":
    main()
