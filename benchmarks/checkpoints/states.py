"""States: what every contestant saves and restores.

A state is a tree of two levels, group name -> tensor name -> tensor, in host memory. Content is random, so
that no contestant gains from compressing it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

Tree = dict[str, dict[str, torch.Tensor]]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class State:
    name: str
    title: str
    tree: Tree

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.flat().values())

    @property
    def tensor_count(self) -> int:
        return sum(len(group) for group in self.tree.values())

    def flat(self) -> dict[str, torch.Tensor]:
        return {f"{group}.{name}": tensor for group, tensors in self.tree.items() for name, tensor in tensors.items()}

    def zeros_like(self) -> State:
        """The same shapes, all zero and already touched: somewhere to restore into."""
        tree = {
            group: {name: torch.full_like(tensor, 0) for name, tensor in tensors.items()}
            for group, tensors in self.tree.items()
        }
        return State(self.name, self.title, tree)

    def equals(self, other: State) -> bool:
        mine, theirs = self.flat(), other.flat()
        return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def small_tensors() -> State:
    """State L: 500 small float32 tensors, 60 MB."""
    shapes_in_turn = [(30_000,), (150, 200), (8, 3_750), (3_750, 8), (10, 30, 100)]
    shapes = {f"layers.{index:03d}.weight": shapes_in_turn[index % 5] for index in range(500)}
    return State("L", "500 small tensors", {"model": _random_group(shapes, seed=1)})


def full_training() -> State:
    """State F: float32 weights and Adam moments of a GPT-2-like model of 125M parameters, about 1.5 GB."""
    return _training_state("F", "125M weights + Adam moments", training_shapes("F"))


def small_training() -> State:
    """A stand-in for F in quick runs: the same structure, about 93 MB."""
    return _training_state("F", "8M weights + Adam moments (quick)", training_shapes("F-quick"))


def make(name: str, *, quick: bool) -> State:
    """L or F; in a quick run, F is its stand-in."""
    if name == "L":
        return small_tensors()
    return small_training() if quick else full_training()


def training_shapes(name: str) -> Shapes:
    """Of the weights of F, or of its stand-in."""
    sizes = {"F": (50_257, 1_024, 768, 12), "F-quick": (8_192, 512, 256, 7)}
    vocabulary, positions, width, layers = sizes[name]
    return _gpt2_shapes(vocabulary=vocabulary, positions=positions, width=width, layers=layers)


def of_size(size_bytes: int, tensor_count: int) -> State:
    """A state for the scaling curves: equal float32 tensors that together take about ``size_bytes``."""
    length = max(1, size_bytes // (4 * tensor_count))
    shapes: Shapes = {f"tensor.{index:05d}": (length,) for index in range(tensor_count)}
    return State("S", f"{tensor_count} tensors, {size_bytes / 1e6:.0f} MB", {"model": _random_group(shapes, seed=3)})


def _training_state(name: str, title: str, shapes: Shapes) -> State:
    groups = ("model", "exp_avg", "exp_avg_sq")
    return State(name, title, {group: _random_group(shapes, seed=seed) for seed, group in enumerate(groups)})


def _gpt2_shapes(*, vocabulary: int, positions: int, width: int, layers: int) -> Shapes:
    shapes: Shapes = {"wte.weight": (vocabulary, width), "wpe.weight": (positions, width)}
    for layer in range(layers):
        for part, shape in {
            "ln_1.weight": (width,),
            "ln_1.bias": (width,),
            "attn.c_attn.weight": (width, 3 * width),
            "attn.c_attn.bias": (3 * width,),
            "attn.c_proj.weight": (width, width),
            "attn.c_proj.bias": (width,),
            "ln_2.weight": (width,),
            "ln_2.bias": (width,),
            "mlp.c_fc.weight": (width, 4 * width),
            "mlp.c_fc.bias": (4 * width,),
            "mlp.c_proj.weight": (4 * width, width),
            "mlp.c_proj.bias": (width,),
        }.items():
            shapes[f"h.{layer}.{part}"] = shape
    return shapes | {"ln_f.weight": (width,), "ln_f.bias": (width,)}


def _random_group(shapes: Shapes, *, seed: int) -> dict[str, torch.Tensor]:
    """Each tensor has storage of its own, as parameters of a model have."""
    generator = np.random.default_rng(seed)
    return {
        name: torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)) for name, shape in shapes.items()
    }
