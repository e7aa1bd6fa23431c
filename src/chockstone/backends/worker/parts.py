"""Archive parts: what an archive of each kind holds of a run.

weights           the run's whole state, as no other program reads it
recovery          the same, for the server itself
sampler_weights   what inference engines load: ``adapter_model.safetensors`` with its
                  ``adapter_config.json``, or ``model.safetensors`` with the base's ``config.json``
external_weights  the same for other programs; a model comes with its tokenizer, in the type it
                  computes with

Every archive has an empty ``checkpoint_complete``, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from chockstone.backends.export.model_files import CONFIG, read_companions, read_config, render_config, with_dtype
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.failures import ServerFailure

COMPLETE: Final = "checkpoint_complete"  # older clients look for it in a downloaded archive


@dataclass(frozen=True, slots=True)
class Parts:
    state: dict[str, Any]  # for ``Checkpointer.save``; refers to live tensors
    files: dict[str, bytes]


def collect_parts(run: TrainedRun, kind: str) -> Parts:
    if kind in ("weights", "recovery"):
        return Parts(run.state(), {COMPLETE: b""})
    if kind not in ("sampler_weights", "external_weights"):
        raise ServerFailure(f"there are no checkpoints of kind {kind!r}")
    described = {"run": run.description()}
    if not run.spec.is_full:
        config, tensors = run.peft_files()
        return Parts(described | {"adapter_model": tensors}, {"adapter_config.json": config, COMPLETE: b""})
    model_config = read_config(run.base.directory)
    if kind == "sampler_weights":
        files = {CONFIG: render_config(model_config), COMPLETE: b""}
        return Parts(described | {"model": run.weights()}, files)
    config = render_config(with_dtype(model_config, str(run.base.dtype).removeprefix("torch.")))
    files = {CONFIG: config, **read_companions(run.base.directory), COMPLETE: b""}
    return Parts(described | {"model": _whole_model(run)}, files)


def _whole_model(run: TrainedRun) -> dict[str, Any]:
    """Every weight in the type the model computes with, and the model's buffers."""
    model = run.base.model
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return run.weights(dtype=run.base.dtype) | {
        name: tensor for name, tensor in model.state_dict().items() if name not in parameters
    }
