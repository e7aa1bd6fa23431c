"""Ray Train: checkpoints that all workers save together, that Ray knows, and that a restarted group resumes from.

``RayTrainCheckpointer`` is for the training function; ``from_ray`` and ``to_ray`` convert from and to
``ray.train.Checkpoint`` anywhere. Imports Ray only when one of the names is used.
"""

from typing import TYPE_CHECKING

from chockstone.lazy_names import lazy_names

if TYPE_CHECKING:
    from chockstone.integrations.ray_train.checkpointer import RayTrainCheckpointer
    from chockstone.integrations.ray_train.conversion import from_ray, to_ray

__all__ = ["RayTrainCheckpointer", "from_ray", "to_ray"]

__getattr__ = lazy_names(
    __name__,
    {
        "RayTrainCheckpointer": "checkpointer",
        "from_ray": "conversion",
        "to_ray": "conversion",
    },
    needs="ray-train",
)
