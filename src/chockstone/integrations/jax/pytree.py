"""A JAX pytree as a part of a state: saved by the paths of its leaves, restored into the structure that is there.

No structure is stored and nothing is pickled. A program that restores builds its pytree first, as it does for a fresh
start, and the leaves are replaced: dicts, lists, NamedTuples (optimizer states of optax) and registered dataclasses
stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax import numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path, tree_unflatten

from chockstone.checkpoints.errors import CheckpointError

_NAMED: Final = 8  # differences that a message spells out


class PytreeState:
    """Holds a pytree, which ``Checkpointer`` saves and restores as it does an object with ``state_dict``.

        state = {"training": PytreeState((params, opt_state, key)), "step": 0}
        checkpointer.restore(state)
        params, opt_state, key = state["training"].tree

    Before a save, assign the current pytree to ``tree``. Leaves may be ``jax.Array``, also keys of ``jax.random.key``,
    numpy arrays and plain values. Each array comes back with the sharding of the array that it replaces. Arrays of
    which other processes hold a part are refused.
    """

    def __init__(self, tree: Any) -> None:  # Any: a pytree is of any type
        self.tree = tree

    def state_dict(self) -> dict[str, object]:
        """The leaves as numpy arrays and plain values, by their paths."""
        names, leaves = _named_leaves(self.tree)
        return {name: _to_host(name, leaf) for name, leaf in zip(names, leaves, strict=True)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Replace the leaves. Raises CheckpointError, with nothing changed, where paths, shapes or dtypes differ."""
        names, leaves = _named_leaves(self.tree)
        differs = [f"missing from the checkpoint: {name}" for name in names if name not in saved]
        differs += [f"unexpected in the checkpoint: {name}" for name in saved if name not in set(names)]
        both = [(name, leaf) for name, leaf in zip(names, leaves, strict=True) if name in saved]
        differs += [line for name, leaf in both for line in _differences(name, leaf, saved[name])]
        if differs:
            more = f"\n  … and {len(differs) - _NAMED} more" if len(differs) > _NAMED else ""
            raise CheckpointError(
                "the checkpoint does not fit the pytree that it is restored into:\n  "
                + "\n  ".join(differs[:_NAMED])
                + f"{more}\nBuild the pytree as the program did that saved it."
            )
        restored = [_like(leaf, saved[name]) for name, leaf in both]
        self.tree = tree_unflatten(jax.tree.structure(self.tree), restored)


def _named_leaves(tree: Any) -> tuple[list[str], list[Any]]:
    """The path of each leaf as one name, and the leaves: ``[0].mu["w"]`` is ``0.mu.w``, where that is clear."""
    found, _ = tree_flatten_with_path(tree)
    names = [keystr(path, simple=True, separator=".") or "value" for path, _ in found]
    if len(set(names)) < len(names):
        names = [keystr(path) for path, _ in found]
    return names, [leaf for _, leaf in found]


def _to_host(name: str, leaf: Any) -> object:
    if not isinstance(leaf, jax.Array):
        return leaf
    if not leaf.is_fully_addressable:
        raise CheckpointError(
            f"{name}: this process holds only a part of the array. Gather it first, with "
            "jax.experimental.multihost_utils.process_allgather, and save from one process"
        )
    if _is_key(leaf):
        return {"key_data": np.asarray(jax.random.key_data(leaf)), "impl": str(jax.random.key_impl(leaf))}
    return np.asarray(leaf)


def _differences(name: str, leaf: Any, saved: Any) -> Sequence[str]:
    if not isinstance(leaf, jax.Array):
        return ()
    expected = _to_host(name, leaf)
    if isinstance(expected, Mapping) or isinstance(saved, Mapping):
        fits = isinstance(expected, Mapping) and isinstance(saved, Mapping) and expected["impl"] == saved.get("impl")
        return () if fits else (f"{name}: one is a random key and the other is not, or their algorithms differ",)
    assert isinstance(expected, np.ndarray)
    if not isinstance(saved, np.ndarray):
        return (f"{name}: the checkpoint holds a {type(saved).__name__}, the pytree an array",)
    if (saved.dtype, saved.shape) == (expected.dtype, expected.shape):
        return ()
    theirs, ours = (f"{each.dtype}{list(each.shape)}" for each in (saved, expected))
    return (f"{name}: the checkpoint holds {theirs}, the pytree {ours}",)


def _like(leaf: Any, saved: Any) -> Any:
    """The restored value where ``leaf`` was: on the same devices, and as weakly typed."""
    if not isinstance(leaf, jax.Array):
        return saved
    if _is_key(leaf):
        made = jax.random.wrap_key_data(jnp.asarray(saved["key_data"]), impl=saved["impl"])
    elif leaf.weak_type and leaf.ndim == 0:
        made = jnp.asarray(saved.item())  # of a Python number, so that it adopts the type of what it meets
    else:
        made = jnp.asarray(saved)
    return jax.device_put(made, leaf.sharding) if leaf.committed else made


def _is_key(leaf: jax.Array) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))
