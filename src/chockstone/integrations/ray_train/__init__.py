"""Ray Train: checkpoints that all workers save together, that Ray knows, and that a restarted group resumes from.

``RayTrainCheckpointer`` is for the training function; ``from_ray`` and ``to_ray`` convert from and to
``ray.train.Checkpoint`` anywhere. Imports Ray only when one of the names is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chockstone.integrations.ray_train.checkpointer import RayTrainCheckpointer
    from chockstone.integrations.ray_train.conversion import from_ray, to_ray

__all__ = ["RayTrainCheckpointer", "from_ray", "to_ray"]


def __getattr__(name: str) -> Any:  # Any: a class or a function
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from chockstone.extras import require

    require("ray-train", __name__)
    home = "checkpointer" if name == "RayTrainCheckpointer" else "conversion"
    return getattr(import_module(f"{__name__}.{home}"), name)
