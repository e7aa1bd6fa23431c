# tensors carry their axes
"""Examples: the datums of a pass, checked against the model and the loss, as tensors.

All errors of a client in a datum are found here, before anything is computed. The message has the datum's index.

Shapes: N positions, K targets per position (1 where the targets are [N]).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from chockstone.backends.losses.custom_loss import CustomLoss
from chockstone.backends.losses.losses import CLIPS, BuiltInLoss
from chockstone.backends.training.base_model import BaseModel
from chockstone.backends.training.micro_batches import DatumExtent
from chockstone.backends.training.packing.families import Content
from chockstone.wire.codecs.passes import Array, Datum, Pass
from chockstone.wire.codecs.routing import Routing
from chockstone.wire.failures import BadRequest

TARGETS = "target_tokens"
_FACTOR = 6364136223846793005  # odd; of a linear congruential generator by Knuth


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    index: int  # in the request
    tokens_N: torch.Tensor  # int64
    targets_NK: torch.Tensor  # int64
    shape: tuple[int, ...]  # of the targets as sent: [N] or [N, K]
    inputs: Mapping[str, torch.Tensor]  # what the loss reads: [N, K], or as sent for a custom loss
    routing_LNK: torch.Tensor | None = None  # experts to compute with, of the first positions; int64

    @property
    def extent(self) -> DatumExtent:
        return DatumExtent(positions=self.targets_NK.shape[0], targets=self.targets_NK.shape[1])

    @property
    def content(self) -> Content:
        """What must be equal in two examples for one to be computed in the place of the other."""
        columns = [self.tokens_N[:, None], self.targets_NK]
        if self.routing_LNK is not None:
            columns.append(_digest(self.routing_LNK, len(self.tokens_N)))
        else:
            columns.append(torch.zeros(len(self.tokens_N), 1, dtype=torch.int64))
        return torch.cat(columns, dim=1).numpy()


def _digest(routing_LNK: torch.Tensor, positions: int) -> torch.Tensor:
    """[positions, 1]: a number for the experts of each position; 0 where they are not recorded."""
    experts_NX = routing_LNK.transpose(0, 1).flatten(1) + 1
    factors_X = torch.full((experts_NX.shape[1],), _FACTOR).cumprod(0)  # integers that wrap around
    digests_N1 = torch.zeros(positions, 1, dtype=torch.int64)
    digests_N1[: len(experts_NX), 0] = (experts_NX * factors_X).sum(dim=1) | 1
    return digests_N1


def check_examples(request: Pass, loss: BuiltInLoss | CustomLoss, base: BaseModel) -> list[Example]:
    if not request.data:
        raise BadRequest("the request has no datums.")
    routing = request.routing or (None,) * len(request.data)
    if len(routing) != len(request.data):
        raise BadRequest(f"the request has {len(request.data)} datums, and routing of {len(routing)}.")
    return [
        _Check(index, datum, base).example(loss, experts)
        for index, (datum, experts) in enumerate(zip(request.data, routing, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class _Check:
    index: int
    datum: Datum
    base: BaseModel

    def refuse(self, why: str) -> BadRequest:
        return BadRequest(f"datum {self.index}: {why}")

    def example(self, loss: BuiltInLoss | CustomLoss, routing: Routing | None) -> Example:
        self._tokens()
        targets = self._targets()
        given = self.datum.inputs
        for name, array in given.items():
            if array.dtype == np.float32 and not np.isfinite(array).all():
                raise self.refuse(f"input {name!r:.80} has values that are not finite.")
        inputs = self._declared(loss) if isinstance(loss, CustomLoss) else self._named(loss)
        return Example(
            index=self.index,
            tokens_N=torch.from_numpy(self.datum.tokens.astype(np.int64)),
            targets_NK=torch.from_numpy(targets.astype(np.int64)).view(len(targets), -1),
            shape=targets.shape,
            inputs=inputs,
            routing_LNK=None if routing is None else self._routing(routing),
        )

    def _routing(self, routing: Routing) -> torch.Tensor | None:
        """None if the model is computed without: its routers are not known."""
        routers = self.base.routers
        if not routers:
            return None
        if (
            routing.shape[1] != len(routers)
            or len(routing) > len(self.datum.tokens)
            or (routing.size and int(routing.max()) >= routers.experts)
        ):
            raise self.refuse(f"its routing of shape {list(routing.shape)} is not that of this model and these tokens.")
        return torch.from_numpy(routing.astype(np.int64)).transpose(0, 1)

    def _tokens(self) -> None:
        tokens, limit = self.datum.tokens, self.base.max_context
        if tokens.ndim != 1 or tokens.size == 0:
            raise self.refuse("the model input is empty; it needs at least one token.")
        if len(tokens) > limit:
            raise self.refuse(f"the model input has {len(tokens)} tokens, but the model's context ends at {limit}.")
        self._in_vocabulary("token", tokens)

    def _targets(self) -> Array:
        targets = self.datum.inputs.get(TARGETS)
        if targets is None:
            raise self.refuse(f"input {TARGETS!r} is missing.")
        if targets.dtype != np.int64:
            raise self.refuse(f"input {TARGETS!r} is {targets.dtype}; send it as int64.")
        positions = len(self.datum.tokens)
        if targets.ndim not in (1, 2) or targets.shape[0] != positions or targets.size == 0:
            raise self.refuse(
                f"input {TARGETS!r} has shape {list(targets.shape)}, but the model input has {positions} positions; "
                f"send [{positions}], or [{positions}, K] with K targets each."
            )
        self._in_vocabulary("target", targets)
        return targets

    def _in_vocabulary(self, what: str, ids: npt.NDArray[Any]) -> None:  # Any: int32 or int64
        outside = (ids < 0) | (ids >= self.base.vocab_size)
        if outside.any():
            where = tuple(int(i) for i in np.argwhere(outside)[0])
            place = where[0] if len(where) == 1 else list(where)
            raise self.refuse(
                f"{what} {int(ids[where])} at position {place} is outside the vocabulary of {self.base.vocab_size}."
            )

    def _named(self, loss: BuiltInLoss) -> dict[str, torch.Tensor]:
        known = (TARGETS, *loss.kind.required, *loss.kind.optional)
        if unknown := sorted(set(self.datum.inputs) - set(known)):
            raise self.refuse(f"the loss {loss.name!r} takes no input {unknown[0]!r:.80}; it takes {', '.join(known)}.")
        shape = self.datum.inputs[TARGETS].shape
        inputs = {name: self._floats(name, loss, shape) for name in loss.kind.required}
        for name in loss.kind.optional:
            if name in self.datum.inputs:
                inputs[name] = self._floats(name, loss, shape)
            else:
                inputs[name] = torch.full((shape[0], *(shape[1:] or (1,))), loss.default(name))
        self._meaningful(inputs)
        return inputs

    def _floats(self, name: str, loss: BuiltInLoss, shape: tuple[int, ...]) -> torch.Tensor:
        array = self.datum.inputs.get(name)
        if array is None:
            raise self.refuse(f"input {name!r} is missing, which the loss {loss.name!r} needs.")
        if array.dtype != np.float32:
            raise self.refuse(f"input {name!r} is {array.dtype}; send it as float32.")
        if array.shape != shape:
            raise self.refuse(f"input {name!r} has shape {list(array.shape)}, but {TARGETS!r} has {list(shape)}.")
        return torch.from_numpy(np.array(array, dtype=np.float32)).view(shape[0], -1)

    def _meaningful(self, inputs: Mapping[str, torch.Tensor]) -> None:
        low, high = (inputs.get(name) for name in CLIPS)
        if low is not None and high is not None and bool((low > high).any()):
            raise self.refuse(f"{CLIPS[0]} is above {CLIPS[1]} at position {int((low > high).nonzero()[0, 0])}.")
        mask = inputs.get("sequence_ratio_mask")
        if mask is not None and not mask.any() and inputs["advantages"].any():
            raise self.refuse("sequence_ratio_mask is zero everywhere, so the sequence has no ratio.")

    def _declared(self, loss: CustomLoss) -> dict[str, torch.Tensor]:
        """The inputs that the custom loss declared, as sent. Other inputs are ignored."""
        inputs: dict[str, torch.Tensor] = {}
        for name, rank in loss.ranks.items():
            key = TARGETS if name == "logprobs" else name
            array = self.datum.inputs.get(key)
            if array is None:
                raise self.refuse(f"input {key!r} is missing, which the custom loss needs.")
            if rank == 0 and array.size == 1:
                array = array.reshape(())  # a scalar has no shape on the wire
            if array.ndim != rank:
                raise self.refuse(f"input {key!r} has rank {array.ndim}, but the custom loss declared {rank}.")
            if name != "logprobs":
                inputs[name] = torch.from_numpy(np.array(array))
        return inputs


def concatenate(examples: Iterable[Example], device: torch.device) -> dict[str, torch.Tensor]:
    """The inputs of several examples, concatenated along the positions."""
    rows = list(examples)
    return {name: torch.cat([example.inputs[name] for example in rows]).to(device) for name in rows[0].inputs}
