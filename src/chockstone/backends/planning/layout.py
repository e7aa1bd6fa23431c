"""Layouts: which weights a run would train, by name and shape, without creating the run."""

from __future__ import annotations

from chockstone.backends.protocol import LayoutReply
from chockstone.backends.quantisation.layers import FULL
from chockstone.backends.run_spec import ALPHA, RunSpec
from chockstone.backends.training.base_model import BaseModel
from chockstone.backends.training.lora import matrix_shapes
from chockstone.backends.training.saved_state import describe_layout
from chockstone.wire.failures import BadRequest


def layout_of(base: BaseModel, spec: RunSpec) -> LayoutReply:
    """Raises BadRequest for a run that the base model cannot have."""
    shapes = _full_shapes(base) if spec.is_full else matrix_shapes(base.layers, head_name=base.head_name, spec=spec)
    run = describe_layout(spec, shapes, expert_files=base.expert_files, base_precision=base.precision)
    return LayoutReply(run=run, scale=1.0 if spec.is_full else ALPHA / spec.rank)


def _full_shapes(base: BaseModel) -> dict[str, tuple[int, ...]]:
    if base.precision != FULL:
        raise BadRequest(
            f"base model {base.name!r} is quantised, and a run of rank 0 needs all weights in full precision. Use an "
            "adapter, with a rank above 0"
        )
    if base.process_group.size > 1:
        raise BadRequest(
            f"base model {base.name!r} is sharded over {base.process_group.size} processes, where full weights cannot "
            "be imported. Import them on a server whose worker is one process"
        )
    return {name: tuple(weight.shape) for name, weight in base.model.named_parameters()}
