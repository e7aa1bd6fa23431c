"""The small files beside the weights in a model directory: configuration, adapter configuration, tokenizer."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import PreTrainedModel, Trainer

from chockstone.integrations.hf_trainer.parts import DEFAULT_ADAPTER, is_peft, plain_model


def model_files(trainer: Trainer) -> dict[str, bytes]:
    """The files that ``from_pretrained`` needs besides the weights, by name. The weights are not touched."""
    with TemporaryDirectory(prefix="chockstone-files-") as place:
        directory = Path(place)
        model = plain_model(trainer)
        if is_peft(model):
            _write_adapter_configs(model, directory)
        elif isinstance(model, PreTrainedModel):
            _write_config(model, directory)
        if (tokenizer := _tokenizer(trainer)) is not None:
            tokenizer.save_pretrained(directory)
        files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def _write_config(model: PreTrainedModel, directory: Path) -> None:
    """As ``save_pretrained`` writes it: with the class and the dtype of the model."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__.removeprefix("FSDP")]  # fully_shard renames the class
    config.dtype = str(model.dtype).removeprefix("torch.")
    config.save_pretrained(directory)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.save_pretrained(directory)


def _write_adapter_configs(model: Any, directory: Path) -> None:  # Any: peft may not be installed
    for name, live in model.peft_config.items():
        config = copy.deepcopy(live)
        config.inference_mode = True
        if config.base_model_name_or_path is None:
            config.base_model_name_or_path = getattr(model.get_base_model(), "name_or_path", None) or None
        config.save_pretrained(str(directory if name == DEFAULT_ADAPTER else directory / name))


def _tokenizer(trainer: Trainer) -> Any:  # Any: a tokenizer or a processor; they share no base class
    if trainer.processing_class is not None:
        return trainer.processing_class
    return getattr(trainer.data_collator, "tokenizer", None)
