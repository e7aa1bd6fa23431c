"""JAX: pytrees of arrays as parts of a state. Imports jax only when a name is used."""

from typing import TYPE_CHECKING

from chockstone.lazy_names import lazy_names

if TYPE_CHECKING:
    from chockstone.integrations.jax.pytree import PytreeState

__all__ = ["PytreeState"]

__getattr__ = lazy_names(__name__, {"PytreeState": "pytree"}, needs="jax")
