"""Makes a small random model in Hugging Face format, for trying things offline.

The same arguments give the same bytes. Needs neither torch nor transformers, so it takes about as long as drawing the
numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

from chockstone.cli.models.shape import Architecture, ModelShape, NoSuchShape, choose_shape, choose_vocab_size
from chockstone.cli.models.tokenizer import FAMILIES, build_tokenizer, smallest_vocabulary, tokenizer_config

LARGEST_VOCABULARY: Final = 262_144
_CONTEXT_TOKENS: Final = 8192
_SPREAD: Final = 0.02  # of the weights; what both architectures start training with


class ModelNotMade(Exception):
    """The wish cannot be met, or the directory cannot be written."""


@dataclass(frozen=True, slots=True)
class MadeModel:
    directory: Path
    shape: ModelShape
    files: tuple[tuple[str, int], ...]  # name and size in bytes, as written

    @property
    def parameters(self) -> int:
        return self.shape.parameters


def make_model(
    directory: str | os.PathLike[str],
    *,
    architecture: Architecture = "qwen3",
    parameters: int = 1_000_000,
    vocab_size: int | None = None,
    seed: int = 0,
    force: bool = False,
) -> MadeModel:
    """Write a random model of about ``parameters`` with tokenizer and chat template.

    ``vocab_size`` None picks one that suits the size. The directory is made; one that holds something is
    refused unless ``force``, which writes over files of the same names and leaves others alone.
    ``config.json`` is written last: where it stands, the rest is complete. Raises ModelNotMade.
    """
    target = Path(directory)
    shape = _choose(architecture, parameters, vocab_size)
    try:
        _claim(target, force=force)
        files = _write(target, shape, seed)
    except OSError as error:
        raise ModelNotMade(f"cannot write a model to {str(target)!r}: {error.strerror or error}") from error
    return MadeModel(target, shape, files)


def _choose(architecture: Architecture, parameters: int, vocab_size: int | None) -> ModelShape:
    wanted = choose_vocab_size(parameters) if vocab_size is None else vocab_size
    smallest = smallest_vocabulary(FAMILIES[architecture])
    if not smallest <= wanted <= LARGEST_VOCABULARY:
        raise ModelNotMade(
            f"a vocabulary of {wanted:,} tokens cannot be made for {architecture}: "
            f"choose from {smallest:,} (every byte and the special tokens) to {LARGEST_VOCABULARY:,}"
        )
    try:
        return choose_shape(architecture, parameters=parameters, vocab_size=wanted)
    except NoSuchShape as error:
        raise ModelNotMade(str(error)) from None


def _claim(target: Path, *, force: bool) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if not force and (held := sorted(os.listdir(target))):
        raise ModelNotMade(
            f"the directory {str(target)!r} is not empty: it holds {held[0]!r}{' and more' if held[1:] else ''}. "
            f"Choose another, or pass --force to overwrite its files."
        )


def _write(target: Path, shape: ModelShape, seed: int) -> tuple[tuple[str, int], ...]:
    family = FAMILIES[shape.architecture]
    tokenizer = build_tokenizer(family, vocab_size=shape.vocab_size)
    ends = [tokenizer.token_to_id(text) for text in family.ends]
    begin = None if family.begin is None else tokenizer.token_to_id(family.begin)
    marks = {"bos_token_id": begin, "eos_token_id": ends, "pad_token_id": tokenizer.token_to_id(family.padding)}
    writers: dict[str, Callable[[Path], object]] = {
        "model.safetensors": lambda path: save_file(_draw(shape, seed), path, metadata={"format": "pt"}),
        "tokenizer.json": lambda path: tokenizer.save(str(path)),
        "tokenizer_config.json": lambda path: _write_json(path, tokenizer_config(family, longest=_CONTEXT_TOKENS)),
        "chat_template.jinja": lambda path: path.write_text(family.chat_template),
        "generation_config.json": lambda path: _write_json(path, {**marks, "do_sample": True}),
        "config.json": lambda path: _write_json(path, {**_config(shape), **marks}),
    }
    return tuple((name, _write_beside(target / name, write)) for name, write in writers.items())


def _write_beside(path: Path, write: Callable[[Path], object]) -> int:
    """The file appears whole, or not at all. Returns its size."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        write(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path.stat().st_size


def _write_json(path: Path, document: dict[str, Any]) -> None:  # Any: JSON
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def _draw(shape: ModelShape, seed: int) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:  # Any: of any rank
    """Norms are ones; each other tensor has a random stream of its own."""
    drawn = {}
    for index, (name, size) in enumerate(shape.tensors()):
        if len(size) == 1:
            drawn[name] = np.ones(size, dtype=np.float32)
            continue
        drawn[name] = np.random.default_rng([seed, index]).standard_normal(size, dtype=np.float32)
        drawn[name] *= np.float32(_SPREAD)
    return drawn


def _config(shape: ModelShape) -> dict[str, Any]:  # Any: JSON
    name = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}[shape.architecture]
    rope_theta = {"qwen3": 1_000_000.0, "llama": 500_000.0}[shape.architecture]
    return {
        "architectures": [name],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "float32",
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": _SPREAD,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": _CONTEXT_TOKENS,
        "model_type": shape.architecture,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.key_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": rope_theta,
        "tie_word_embeddings": shape.is_tied,
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }
