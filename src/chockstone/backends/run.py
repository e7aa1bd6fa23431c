"""Runs: one trained model each, with its weights, gradient and optimizer, on a shared base model.

A run is changed by one operation at a time, in the order of its lane; between the micro-batches of
one run's pass other runs and samplers may use the base model. A failed or abandoned operation
leaves the run bit for bit as it was.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from chockstone.backends.base_model import BaseModel
from chockstone.backends.custom_loss import CustomLoss
from chockstone.backends.examples import check_examples
from chockstone.backends.forward import run_micro_batch
from chockstone.backends.full import FullWeights
from chockstone.backends.lora import LoraWeights
from chockstone.backends.losses import choose_loss
from chockstone.backends.micro_batches import TOKENS_ON_CPU, TOKENS_ON_GPU, plan_micro_batches
from chockstone.backends.optimizers import Optimizer, OptimStep, clip
from chockstone.backends.outcome import Outcome
from chockstone.backends.peft_files import peft_files
from chockstone.backends.spec import RunSpec
from chockstone.backends.state import make_state, saved_gradient, saved_optimizer, saved_weights
from chockstone.sampling.adapter import Adapter
from chockstone.wire.failures import BadRequest
from chockstone.wire.passes import Pass, PassResult

__all__ = ["Run", "RunSpec"]


class Run:
    def __init__(self, base: BaseModel, spec: RunSpec) -> None:
        self.base = base
        self.spec = spec
        self._weights: LoraWeights | FullWeights
        if spec.is_full:
            self._weights = FullWeights(base.model, device=base.device)
        else:
            self._weights = LoraWeights(dict(base.layers), head_name=base.head_name, spec=spec, device=base.device)
        self._optimizer = Optimizer(spec.optimizer)
        self._gradient: torch.Tensor | None = None  # summed since the last step

    @property
    def parameter_count(self) -> int:
        return self._weights.parameters.flat.numel()

    @property
    def steps(self) -> int:
        return self._optimizer.steps

    def apply(
        self, request: Pass, losses: Mapping[str, CustomLoss], *, tokens_per_micro_batch: int = 0
    ) -> Generator[None, None, PassResult]:
        """One forward or forward-backward pass; yields after each micro-batch.

        Its gradient is added to the accumulated one at the very end, when all of it is there and finite.
        """
        loss = choose_loss(request.loss, request.options, losses)
        examples = check_examples(request, loss, self.base)
        budget = tokens_per_micro_batch or (TOKENS_ON_CPU if self.base.device.type == "cpu" else TOKENS_ON_GPU)
        parameters = self._weights.parameters
        gradient = None if request.forward_only else torch.zeros_like(parameters.flat)
        outcome = Outcome(request, loss)
        for indices in plan_micro_batches([example.extent for example in examples], tokens=budget):
            with parameters.accumulating(gradient), self._weights.applied():
                result = run_micro_batch(self.base, [examples[index] for index in indices], loss)
            outcome.add(indices, result)
            yield
        if gradient is not None:
            self._accumulate(gradient)
        return outcome.finish()

    def _accumulate(self, gradient: torch.Tensor) -> None:
        if self._gradient is not None:
            gradient.add_(self._gradient)
        if not torch.linalg.vector_norm(gradient, ord=float("inf")).isfinite():
            raise BadRequest(
                "the gradient is not finite, so it was thrown away. Weights, advantages or a ratio are too large."
            )
        self._gradient = gradient

    def optim_step(self, params: OptimStep) -> dict[str, float]:
        """Apply and clear the accumulated gradient. Without one, nothing changes and the metrics say so."""
        if params.family != self.spec.optimizer:
            raise BadRequest(
                f"the run was created for {self.spec.optimizer!r}, so it cannot step with {params.family!r}."
            )
        if self._gradient is None:
            return {"skipped_no_gradient": 1.0, "steps": float(self._optimizer.steps)}
        norm = clip(self._gradient, params.grad_clip_norm)
        self._optimizer.update(self._weights.parameters.flat, self._gradient, params)
        self._gradient = None
        return {"grad_norm": norm, "learning_rate": params.learning_rate, "steps": float(self._optimizer.steps)}

    def state(self, *, with_gradient: bool = True) -> dict[str, Any]:
        """Everything that makes up the run, for ``Checkpointer.save``. Refers to live tensors: save it before going on.

        Weights stand by name; moments and gradient are flat, their layout that of the weights.
        """
        parameters = self._weights.parameters
        return make_state(
            self.spec,
            parameters.views(parameters.flat),
            optimizer=self._optimizer,
            gradient=self._gradient if with_gradient else None,
        )

    def load(self, state: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Take on a saved state. Without its optimizer that starts afresh, and no gradient is taken either.

        Raises BadRequest, with nothing changed, when the state does not fit.
        """
        parameters = self._weights.parameters
        shapes, device = parameters.shapes, self.base.device
        weights = saved_weights(state, self.spec, shapes)
        optimizer = (
            saved_optimizer(state, self.spec, shapes, device) if with_optimizer else Optimizer(self.spec.optimizer)
        )
        gradient = saved_gradient(state, shapes, device) if with_optimizer else None
        for name, view in parameters.views(parameters.flat).items():
            view.copy_(weights[name])
        self._optimizer, self._gradient = optimizer, gradient

    def adapter(self) -> Adapter:
        """A copy of a LoRA run's matrices at this moment, to sample with."""
        return self._lora().snapshot()

    def full_copy(self) -> PreTrainedModel:
        """A copy of a rank-0 run's whole model at this moment, to sample with."""
        if not isinstance(self._weights, FullWeights):
            raise BadRequest("a LoRA run has no model of its own; take its adapter.")
        return self._weights.snapshot()

    def peft_files(self) -> tuple[bytes, dict[str, torch.Tensor]]:
        """``adapter_config.json``, and the tensors of ``adapter_model.safetensors``, which are live as in ``state``."""
        adapter = self._lora().live()
        return peft_files(adapter, rank=self.spec.rank, base_model=self.base.name, layer_names=self.base.layers)

    def _lora(self) -> LoraWeights:
        if not isinstance(self._weights, LoraWeights):
            raise BadRequest("a run of rank 0 trains all weights and has no adapter.")
        return self._weights
