"""A Trainer continues from a checkpoint that was imported, and from one that was exported, as from its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from chockstone.checkpoints import Checkpointer
from chockstone.integrations.formats import import_checkpoint
from chockstone.integrations.hf_trainer import attach
from support.cli.store_commands import run
from support.integrations.foreign import same
from support.tiny_models import tiny_model


def make_trainer(output: Path) -> Trainer:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 90, (12, 8), generator=generator)
    data: Any = [{"input_ids": row, "labels": row} for row in rows]
    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=4,
        save_steps=2,
        logging_steps=1,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(model=tiny_model(tied=True), args=arguments, train_dataset=data)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """What an ordinary Trainer wrote, and its model after four steps."""
    output = tmp_path_factory.mktemp("trainer")
    trainer = make_trainer(output)
    trainer.train()
    return output, trainer.model


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return dict(model.state_dict())


def test_a_trainer_with_the_adapter_resumes_from_an_imported_checkpoint(
    finished: tuple[Path, Any], tmp_path: Path
) -> None:
    output, model = finished
    import_checkpoint(output / "checkpoint-2", tmp_path / "store", prefix="run-1")
    trainer = make_trainer(tmp_path / "new")
    checkpoints = attach(trainer, tmp_path / "store", prefix="run-1")

    trainer.train(resume_from_checkpoint="auto")

    assert checkpoints.receipt is not None and checkpoints.receipt.step == 2
    assert trainer.state.global_step == 4
    assert same(weights_of(trainer.model), weights_of(model))


def test_an_ordinary_trainer_resumes_from_an_exported_directory(finished: tuple[Path, Any], tmp_path: Path) -> None:
    output, model = finished
    import_checkpoint(output / "checkpoint-2", tmp_path / "store")

    exported = run("export", tmp_path / "store", "step-00000002", tmp_path / "checkpoint-2", "--to", "hf")

    assert (exported.exit_code, exported.stderr) == (0, "")
    trainer = make_trainer(tmp_path / "new")
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same(weights_of(trainer.model), weights_of(model))
    import_checkpoint(tmp_path / "checkpoint-2", tmp_path / "store", name="again")
    with Checkpointer(tmp_path / "store") as checkpointer:
        first, again = (checkpointer.load(name=name) for name in ("step-00000002", "again"))
    assert same(again, first)
