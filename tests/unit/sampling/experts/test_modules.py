from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from chockstone.sampling.adapter import LowRank
from chockstone.sampling.experts import modules as experts_module
from chockstone.sampling.experts.modules import (
    AdaptableExperts,
    ExpertRoutes,
    expert_projections,
    make_experts_adaptable,
)
from support.tiny_experts import ARCHITECTURES, tiny_experts

SCALE = 0.7


def one_layer(architecture: str, *, rank: int = 3) -> tuple[AdaptableExperts, Any]:
    """An experts module with a random adapter, and a copy of the module without one."""
    model = tiny_experts(architecture).requires_grad_(False)
    plain = next(copy.deepcopy(module) for name, module in model.named_modules() if name.endswith(".experts"))
    module = next(iter(make_experts_adaptable(model).values()))
    generator = torch.Generator().manual_seed(5)
    for projection in (module.first, module.last):
        down, up = (
            torch.empty(shape).normal_(0, 0.3, generator=generator).requires_grad_()
            for shape in projection.matrix_shapes(rank)
        )
        projection.active, projection.scale = LowRank(down, up), SCALE
    return module, plain


def batch(module: AdaptableExperts, *, experts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(6)
    x = torch.empty(9, module.first.in_features).normal_(generator=generator).requires_grad_()
    chosen = torch.stack([torch.randperm(experts, generator=generator)[:2] for _ in range(9)])
    weights = torch.rand(9, 2, generator=generator).requires_grad_()
    return x, chosen, weights


def merge(module: AdaptableExperts, plain: Any) -> list[torch.Tensor]:
    """Write ``W + scale * up @ down`` into the plain module, with a graph. Returns the matrices in the graph."""
    matrices = []
    for name, projection in expert_projections({"it": module}).items():
        assert projection.active is not None
        down, up = (value.detach().clone().requires_grad_() for value in (projection.active.down, projection.active.up))
        change = SCALE * torch.bmm(up, down)
        attribute = name.removeprefix("it.")
        weight = getattr(plain, attribute) + (change.transpose(1, 2) if plain.is_transposed else change)
        del plain._parameters[attribute]
        setattr(plain, attribute, weight)
        matrices += [down, up]
    return matrices


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_adapted_experts_compute_as_merged_ones_forward_and_backward(architecture: str) -> None:
    module, plain = one_layer(architecture)
    x, chosen, weights = batch(module, experts=module.first.experts)
    matrices = merge(module, plain)
    x2, weights2 = (value.detach().clone().requires_grad_() for value in (x, weights))

    module(x, chosen, weights).square().sum().backward()
    plain(x2, chosen, weights2).square().sum().backward()

    torch.testing.assert_close(module(x, chosen, weights), plain(x2, chosen, weights2), rtol=1e-4, atol=1e-5)
    assert module.first.active is not None and module.last.active is not None
    ours = [module.first.active.down, module.first.active.up, module.last.active.down, module.last.active.up]
    for mine, theirs in zip([*ours, x, weights], [*matrices, x2, weights2], strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)


def test_an_expert_without_rows_gets_no_gradient_and_the_others_do() -> None:
    module, _ = one_layer("qwen3_moe")
    x, chosen, weights = batch(module, experts=3)

    module(x, chosen, weights).sum().backward()

    assert module.first.active is not None and module.first.active.down.grad is not None
    touched = [bool(gradient.any()) for gradient in module.first.active.down.grad]
    assert touched == [True, True, True, False, False, False]


def test_the_same_batch_gives_the_same_bits() -> None:
    results = []
    for _ in range(2):
        module, _ = one_layer("qwen3_moe")
        x, chosen, weights = batch(module, experts=6)
        y = module(x, chosen, weights)
        y.sum().backward()
        assert module.last.active is not None
        results.append((y, x.grad, module.last.active.up.grad))

    assert all(torch.equal(first, again) for first, again in zip(*results, strict=True))


def test_without_an_adapter_the_module_computes_as_before() -> None:
    module, plain = one_layer("qwen3_moe")
    module.first.active = module.last.active = None
    x, chosen, weights = batch(module, experts=6)

    assert torch.equal(module(x, chosen, weights), plain(x, chosen, weights))


def test_grouped_products_of_torch_give_what_the_loop_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The products that CUDA computes for all experts at once; torch has them on the CPU, too."""
    module, _ = one_layer("mixtral", rank=8)
    x, chosen, weights = batch(module, experts=4)
    module(x, chosen, weights).square().sum().backward()
    assert module.first.active is not None and module.last.active is not None
    leaves = [x, weights, module.first.active.down, module.first.active.up, module.last.active.down]
    expected = [leaf.grad for leaf in leaves]
    for leaf in [*leaves, module.last.active.up]:
        leaf.grad = None

    monkeypatch.setattr(experts_module, "_is_grouped", lambda *_: True)
    module(x, chosen, weights).square().sum().backward()

    for leaf, gradient in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-4, atol=1e-4)


def test_routes_sort_rows_by_expert_and_find_them_again() -> None:
    routes = ExpertRoutes(torch.tensor([[2, 0], [0, 3], [2, 3]]), experts=5)

    assert routes.experts_S.tolist() == [0, 0, 2, 2, 3, 3]
    assert routes.tokens_S.tolist() == [0, 1, 0, 2, 1, 2]
    assert routes.groups == [(0, slice(0, 2)), (2, slice(2, 4)), (3, slice(4, 6))]
    rows = torch.arange(6.0)[:, None]
    assert routes.sum_by_token(rows).flatten().tolist() == [0 + 2, 1 + 4, 3 + 5]


def test_experts_are_made_adaptable_once_and_keep_their_names() -> None:
    model = tiny_experts()
    names = list(model.state_dict())

    first = make_experts_adaptable(model)
    again = make_experts_adaptable(model)

    assert list(first) == ["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"]
    assert all(first[name] is again[name] for name in first) and list(model.state_dict()) == names
    assert make_experts_adaptable(torch.nn.Linear(2, 2)) == {}
