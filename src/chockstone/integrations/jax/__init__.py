"""JAX: pytrees of arrays as parts of a state. Imports jax only when a name is used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chockstone.integrations.jax.pytree import PytreeState

__all__ = ["PytreeState"]


def __getattr__(name: str) -> Any:  # Any: a class
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from chockstone.extras import require

    require("jax", __name__)
    from chockstone.integrations.jax.pytree import PytreeState

    return PytreeState
