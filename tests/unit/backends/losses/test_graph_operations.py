from __future__ import annotations

from typing import Any

import pytest
import torch

from chockstone.backends.losses.graph_operations import FUNCTIONS, METHODS, check_keywords, function, method
from chockstone.wire.failures import BadRequest

X = torch.arange(4.0)


def test_functions_are_those_of_torch() -> None:
    assert torch.equal(function("torch.exp")(X), X.exp())
    assert torch.equal(function("operator.mul")(X, 2), X * 2)
    assert torch.equal(method("clamp")(X, min=1), X.clamp(min=1))
    assert function("getattr")(X, "shape") == X.shape


@pytest.mark.parametrize("name", ["os.system", "torch.load", "torch.rand", "torch.save", "eval", "operator.setitem"])
def test_other_functions_are_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="is not allowed in a custom loss"):
        function(name)


@pytest.mark.parametrize("name", ["add_", "numpy", "share_memory_", "uniform_", "register_hook", "__reduce__"])
def test_other_methods_are_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="is not allowed in a custom loss"):
        method(name)


def test_nothing_in_the_tables_works_in_place_or_is_random() -> None:
    names = [name.rpartition(".")[2] for name in (*FUNCTIONS, *METHODS)]

    assert [name for name in names if name.endswith("_") and name not in ("and_", "or_", "not_")] == []
    assert [name for name in names if "rand" in name or "dropout" in name] == []


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("getattr", (X, "__class__"), "reading '__class__'"),
        ("getattr", ("text", "shape"), "of a str"),
        ("operator.add", ("a", "b"), "arithmetic on a str"),
        ("operator.mul", (2**40, 2**40), "does not fit 64 bits"),
        ("operator.pow", (2, 10_000), "too large"),
        ("operator.getitem", ({}, "a"), "indexing a dict"),
        ("operator.getitem", (X[None], (0, X > 1)), "a mask must be the only index"),
        ("math.exp", (X,), "takes numbers; use torch.exp"),
        ("torch.nn.functional.relu", (X, True), "'inplace' is not allowed"),
    ],
)
def test_arguments_that_could_do_harm_are_refused(name: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        function(name)(*arguments)


def test_keywords_that_could_do_harm_are_refused() -> None:
    check_keywords(["dim", "keepdim"])
    with pytest.raises(BadRequest, match="'out' is not allowed"):
        check_keywords(["dim", "out"])
