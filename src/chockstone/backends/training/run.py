"""Runs: the weights, gradient and optimizer of one trained model, on a shared base model.

A run is changed by one operation at a time, in the order of its lane. Between the micro-batches of a pass other runs
and samplers may use the base model. A failed or abandoned operation leaves the run unchanged, bit for bit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Mapping
from typing import Any

import torch

from chockstone.backends.export.peft import peft_files
from chockstone.backends.losses.custom_loss import CustomLoss
from chockstone.backends.losses.loss_meter import PassBudget
from chockstone.backends.losses.losses import choose_loss
from chockstone.backends.memory.out_of_memory import PassOutOfMemory, is_out_of_memory
from chockstone.backends.protocol import LossLimits
from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.base_model import BaseModel
from chockstone.backends.training.examples import check_examples
from chockstone.backends.training.flat_parameters import blank_like
from chockstone.backends.training.forward import run_shares
from chockstone.backends.training.full import ModelCopy, OwnWeights
from chockstone.backends.training.lora import LoraWeights
from chockstone.backends.training.micro_batches import (
    TOKENS_ON_CPU,
    TOKENS_ON_GPU,
    deal,
    plan_micro_batches,
    plan_packed,
)
from chockstone.backends.training.optimizers import Optimizer, OptimStep, clip
from chockstone.backends.training.pass_results import BatchResult, PassOutcome
from chockstone.backends.training.saved_state import (
    describe_run,
    make_state,
    saved_gradient,
    saved_optimizer,
    saved_precision,
    saved_weights,
)
from chockstone.sampling.adapter import Adapter
from chockstone.wire.codecs.passes import Pass, PassResult
from chockstone.wire.failures import BadRequest

log = logging.getLogger(__name__)


class TrainedRun:
    def __init__(self, base: BaseModel, spec: RunSpec) -> None:
        self.base = base
        self.spec = spec
        self._weights: LoraWeights | OwnWeights
        if spec.is_full:
            self._weights = base.own_weights()
        else:
            self._weights = LoraWeights(
                dict(base.layers),
                head_name=base.head_name,
                spec=spec,
                device=base.device,
                process_group=base.process_group,
            )
        self._optimizer = Optimizer(spec.optimizer)
        self._gradient: torch.Tensor | None = None  # accumulated since the last step
        self._norm: float | None = None  # norm of the gradient, once it was measured

    @property
    def trained(self) -> LoraWeights | OwnWeights:
        """The weights that it trains."""
        return self._weights

    @property
    def parameter_count(self) -> int:
        return sum(map(math.prod, self._weights.parameters.shapes.values()))

    @property
    def held_bytes(self) -> int:
        """Of weights, gradient and moments, as far as they exist, in this process."""
        gradient = () if self._gradient is None else (self._gradient,)
        tensors = (self._weights.parameters.flat, *gradient, *self._optimizer.moments.values())
        return sum(tensor.nbytes for tensor in tensors)

    @property
    def steps(self) -> int:
        return self._optimizer.steps

    def choose_budget(self, tokens_per_micro_batch: int) -> int:
        """Tokens of a micro-batch; 0 is the default of the device."""
        return tokens_per_micro_batch or (TOKENS_ON_CPU if self.base.device.type == "cpu" else TOKENS_ON_GPU)

    def apply(
        self,
        request: Pass,
        losses: Mapping[str, CustomLoss],
        *,
        tokens_per_micro_batch: int = 0,
        loss_limits: LossLimits = "enforced",
    ) -> Generator[None, None, PassResult]:
        """One forward or forward-backward pass. Yields after each micro-batch, and in between for an expensive loss.

        The gradient is added to the accumulated one at the end, if all of it is finite. Raises PassOutOfMemory, unless
        other processes compute in step: they cannot go back together.
        """
        loss = choose_loss(request.loss, request.options, losses)
        examples = check_examples(request, loss, self.base)
        budget = self.choose_budget(tokens_per_micro_batch)
        parameters = self._weights.parameters
        gradient = None if request.forward_only else blank_like(parameters.flat)
        outcome = PassOutcome(request, loss)
        if self.base.packs:
            groups = plan_packed([example.content for example in examples], tokens=budget)
        else:
            groups = plan_micro_batches([example.extent for example in examples], tokens=budget)
        cost = PassBudget(loss_limits)
        for shares in deal(groups, processes=self.base.process_group.size):
            steps = run_shares(self.base, [[examples[index] for index in share] for share in shares], loss, cost)
            indices = [index for share in shares for index in share]
            try:
                result = yield from self._compute(steps, gradient)
            except Exception as error:
                if self.base.process_group.size == 1 and is_out_of_memory(error):
                    positions = sum(examples[index].extent.positions for index in indices)
                    raise PassOutOfMemory(tuple(indices), positions) from error
                raise
            cost.settle(result.work)
            outcome.add(indices, result)
            yield
        if gradient is not None:
            self._accumulate(gradient)
        return outcome.finish()

    def _compute(
        self, steps: Generator[None, None, BatchResult], gradient: torch.Tensor | None
    ) -> Generator[None, None, BatchResult]:
        """Take the steps of a micro-batch with this run's weights. Between them others may use the base model."""
        while True:
            with self._weights.parameters.accumulating(gradient), self._weights.applied():
                try:
                    next(steps)
                except StopIteration as ended:
                    result: BatchResult = ended.value
                    return result
            yield

    def _accumulate(self, gradient: torch.Tensor) -> None:
        self._weights.complete(gradient)
        if self._gradient is not None:
            gradient.add_(self._gradient)
        norm = self._weights.parameters.norm(gradient)
        if not math.isfinite(norm):
            raise BadRequest(
                "the gradient is not finite, so it was thrown away. Weights, advantages or a ratio are too large."
            )
        self._gradient, self._norm = gradient, norm

    def optim_step(self, params: OptimStep) -> dict[str, float]:
        """Apply and clear the accumulated gradient. Without a gradient nothing changes, and the metrics say so."""
        if params.family != self.spec.optimizer:
            raise BadRequest(
                f"the run was created for {self.spec.optimizer!r}, so it cannot step with {params.family!r}."
            )
        if self._gradient is None:
            return {"skipped_no_gradient": 1.0, "steps": float(self._optimizer.steps)}
        parameters = self._weights.parameters
        norm = parameters.norm(self._gradient) if self._norm is None else self._norm
        self._optimizer.make_moments(parameters.flat)
        clip(self._gradient, params.grad_clip_norm, norm=norm)
        self._optimizer.update(parameters.flat, self._gradient, params)
        self._gradient = self._norm = None
        return {"grad_norm": norm, "learning_rate": params.learning_rate, "steps": float(self._optimizer.steps)}

    def state(self, *, with_gradient: bool = True) -> dict[str, Any]:
        """The whole state of the run, for ``Checkpointer.save``. Refers to live tensors: save it before the next call.

        Weights are stored by name. Moments and gradient are flat tensors with the layout of the weights.
        """
        gradient = self._gradient if with_gradient else None
        return make_state(
            self.spec,
            self._weights.parameters,
            optimizer=self._optimizer,
            gradient=gradient,
            expert_files=self.base.expert_files,
            base_precision=self.base.precision,
        )

    def description(self) -> dict[str, Any]:
        """What every archive of the run says of it."""
        return describe_run(self.spec, base_precision=self.base.precision)

    def weights(self, *, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
        """The weights of ``state``. They are live tensors, unless they have to be cast."""
        parameters = self._weights.parameters
        return parameters.named(parameters.flat.to(dtype))

    def load(self, state: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Load a saved state. Without the optimizer, a new optimizer is created and there is no gradient.

        A state that was trained on a base model of another precision is loaded, and a warning is logged.

        Raises BadRequest, with nothing changed, if the state does not fit.
        """
        parameters = self._weights.parameters
        weights = saved_weights(state, self.spec, parameters.shapes)
        optimizer = saved_optimizer(state, self.spec, parameters) if with_optimizer else Optimizer(self.spec.optimizer)
        gradient = saved_gradient(state, parameters) if with_optimizer else None
        if (trained_on := saved_precision(state)) != self.base.precision:
            log.warning("checkpoint of another precision trained_on=%s base=%s", trained_on, self.base.precision)
        for name, view in parameters.views(parameters.flat).items():
            view.copy_(parameters.part(name, weights[name]))
        self._optimizer, self._gradient, self._norm = optimizer, gradient, None

    def adapter(self) -> Adapter:
        """A copy of the matrices of a LoRA run, to sample with."""
        return self._lora().snapshot()

    def full_copy(self) -> ModelCopy:
        """A copy of the whole model of a rank-0 run, to sample with."""
        if isinstance(self._weights, LoraWeights):
            raise BadRequest("a LoRA run has no model of its own; take its adapter.")
        return self._weights.snapshot()

    def peft_files(self) -> tuple[bytes, dict[str, torch.Tensor]]:
        """``adapter_config.json``, and the tensors of ``adapter_model.safetensors``, live as in ``state``."""
        adapter = self._lora().live()
        return peft_files(
            adapter,
            rank=self.spec.rank,
            base_model=self.base.name,
            layer_names=self.base.layers,
            expert_files=self.base.expert_files,
        )

    def _lora(self) -> LoraWeights:
        if not isinstance(self._weights, LoraWeights):
            raise BadRequest("a run of rank 0 trains all weights and has no adapter.")
        return self._weights
