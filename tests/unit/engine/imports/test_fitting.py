from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from chockstone.backends.run_spec import RunSpec
from chockstone.engine.imports.fitting import FittedWeights, fit_adapter, fit_model
from chockstone.engine.imports.tensor_file import TensorFile
from chockstone.wire.failures import BadRequest
from support.adapters import matrices
from support.engine.fake_backend import LAYERS, shapes_of_run

SPEC = RunSpec(rank=4, seed=1)
SHAPES = {name: tuple(shape) for name, shape in shapes_of_run(SPEC)}
FULL = {name: tuple(shape) for name, shape in shapes_of_run(RunSpec(rank=0, seed=1))}


@contextmanager
def opened(tensors: dict[str, Any], directory: Path) -> Iterator[TensorFile]:
    path = directory / "given.safetensors"
    save_file(tensors, path)
    with TensorFile(path, max_header_bytes=1 << 16) as file:
        yield file


def fit(file: TensorFile, factor: float = 1.0) -> FittedWeights:
    return fit_adapter(file, SHAPES, rank=4, factor=factor, seed=1)


def test_matrices_get_the_names_of_the_run(tmp_path: Path) -> None:
    given = matrices()
    with opened(given, tmp_path) as file:
        fitted = fit(file)

        assert list(fitted.weights) == list(SHAPES)
        assert fitted.untrained == ()
        for key, tensor in given.items():
            name = key.removeprefix("base_model.model.").removesuffix(".weight")
            assert np.array_equal(fitted.weights[name].numbers(), tensor)


def test_another_scale_goes_into_lora_B_alone(tmp_path: Path) -> None:
    given = matrices()
    with opened(given, tmp_path) as file:
        weights = fit(file, factor=0.5).weights

        layer = LAYERS[0]
        assert np.array_equal(
            weights[f"{layer}.lora_B"].numbers(), given[f"base_model.model.{layer}.lora_B.weight"] / 2
        )
        assert np.array_equal(weights[f"{layer}.lora_A"].numbers(), given[f"base_model.model.{layer}.lora_A.weight"])


def test_a_layer_that_is_not_there_starts_untrained_and_trainable(tmp_path: Path) -> None:
    with opened(matrices(layers=LAYERS[:1]), tmp_path) as file:
        fitted = fit(file)

        assert fitted.untrained == LAYERS[1:]
        down, up = (fitted.weights[f"{LAYERS[1]}.{name}"].numbers() for name in ("lora_A", "lora_B"))
        assert not up.any()
        assert down.all() and (np.abs(down) <= 0.5).all()
        assert np.array_equal(down, fit(file).weights[f"{LAYERS[1]}.lora_A"].numbers())


def changed(**tensors: Any) -> dict[str, Any]:
    return {**matrices(), **tensors}


ONES = np.ones((4, 4), np.float32)
KEY = f"base_model.model.{LAYERS[0]}.lora_A.weight"
NOT_FINITE = matrices()[KEY].copy()
NOT_FINITE[0, 0] = np.nan
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown layer": (changed(**{KEY.replace("q_proj", "r_proj"): ONES}), "r_proj"),
    "another block": (changed(**{KEY.replace(".0.", ".7."): ONES}), "trains"),
    "a wrong shape": (changed(**{KEY: np.ones((4, 5), np.float32)}), "shape"),
    "a wrong rank": (changed(**{KEY: np.ones((2, 4), np.float32)}), "shape"),
    "a magnitude of DoRA": (
        changed(**{KEY.replace("lora_A", "lora_magnitude_vector"): np.ones(3, np.float32)}),
        "magnitude",
    ),
    "two names for one": (changed(**{KEY.replace(".weight", ".default.weight"): ONES}), "two tensors"),
    "half of a pair": ({key: value for key, value in matrices().items() if key != KEY}, "pairs"),
    "nothing": ({}, "no matrices"),
    "no numbers": (changed(**{KEY: NOT_FINITE}), "not finite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_adapter_that_does_not_fit_is_refused(case: str, tmp_path: Path) -> None:
    tensors, words = REFUSED[case]
    with opened(tensors, tmp_path) as file, pytest.raises(BadRequest, match=words):
        fit(file)


def test_a_scale_that_leaves_float32_is_refused(tmp_path: Path) -> None:
    with opened(matrices(), tmp_path) as file, pytest.raises(BadRequest, match="not finite"):
        fit(file, factor=1e39)


def model() -> dict[str, Any]:
    draw = np.random.default_rng(3)
    return {name: draw.standard_normal(shape, np.float32) for name, shape in FULL.items()}


def test_all_weights_are_taken_and_a_tied_copy_is_left_out(tmp_path: Path) -> None:
    given = model()
    with opened({**given, "lm_head.weight": next(iter(given.values())).copy()}, tmp_path) as file:
        fitted = fit_model(file, FULL)

        assert fitted.left_out == ("lm_head.weight",)
        assert all(np.array_equal(fitted.weights[name].numbers(), given[name]) for name in FULL)


def test_a_model_that_lacks_a_weight_or_has_another_is_refused(tmp_path: Path) -> None:
    first, second = FULL
    cases = {
        "lacks": {first: model()[first]},
        "shape": {**model(), second: np.ones((3, 5), np.float32)},
        "no weight": {**model(), "score.weight": np.ones((3, 4), np.float32)},
        "not finite": {**model(), second: np.full((3, 4), np.inf, np.float32)},
    }
    for words, tensors in cases.items():
        with opened(tensors, tmp_path) as file, pytest.raises(BadRequest, match=words):
            fit_model(file, FULL)
