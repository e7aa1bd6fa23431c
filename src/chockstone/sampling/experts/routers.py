# tensors carry their axes
"""Routers: the modules that choose the experts of each token, and how a recorded choice is forced on them.

A router computes scores of all experts, takes the best ``K`` of them by ``topk``, and makes weights of their scores.
Inside a *forced* router, ``topk`` returns the experts that were recorded and their present scores. So the weights are
those of the present model, and gradients flow through them as before. All architectures are forced alike.

Shapes: N tokens, K experts of each token, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, Final, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from chockstone.sampling.experts.modules import AdaptableExperts

FREE: Final = -1  # in forced experts: the router chooses for this token


class ForcedRouter(nn.Module):
    """Comes before the class of a router."""

    experts: int
    forced_NK: torch.Tensor | None

    def forward(self, *values: Any, **named: Any) -> Any:  # Any: each architecture has its own
        if self.forced_NK is None:
            return super().forward(*values, **named)
        with _ForcedTopK(self.forced_NK, self.experts):
            return super().forward(*values, **named)


class _ForcedTopK(TorchFunctionMode):
    def __init__(self, forced_NK: torch.Tensor, experts: int) -> None:
        super().__init__()
        self._forced_NK = forced_NK
        self._experts = experts

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:  # Any: as torch calls it
        result = func(*args, **(kwargs or {}))
        if func not in (torch.topk, torch.Tensor.topk):
            return result
        scores = args[0] if args else (kwargs or {})["input"]
        if scores.shape[-1] != self._experts or result.indices.shape[-1] != self._forced_NK.shape[-1]:
            return result  # of groups of experts
        forced = self._forced_NK.view(result.indices.shape)
        chosen = torch.where(forced == FREE, result.indices, forced)
        return torch.return_types.topk((scores.gather(-1, chosen), chosen))


class RoutingRecorder:
    """Records what the routers of a model choose, while the model runs once."""

    def __init__(self, experts: Collection[AdaptableExperts]) -> None:
        self._experts = tuple(experts)

    @contextmanager
    def recording(self) -> Iterator[None]:
        for module in self._experts:
            module.records = True
        try:
            yield
        finally:
            for module in self._experts:
                module.records = False

    def take(self) -> torch.Tensor:
        """[L, N, K], of all rows since the last call."""
        chosen = []
        for module in self._experts:
            chosen.append(torch.cat([each.flatten(0, -2) for each in module.chosen]))
            module.chosen = []
        return torch.stack(chosen)

    def take_rows(self) -> torch.Tensor:
        """[N, L, K] on the CPU, as numbers that records take."""
        return self.take().transpose(0, 1).to(torch.uint16).cpu().contiguous()


class Routers:
    """The routers of a model, in the order of its layers. Empty for a model without, or with unknown ones."""

    def __init__(self, routers: Mapping[AdaptableExperts, ForcedRouter] = MappingProxyType({})) -> None:
        """By the experts that they choose from."""
        self._routers = tuple(routers.values())
        self._recorder = RoutingRecorder(routers)

    def __len__(self) -> int:
        return len(self._routers)

    @property
    def experts(self) -> int:
        """That each router chooses from; the least, if they differ."""
        return min((router.experts for router in self._routers), default=0)

    def recording(self) -> AbstractContextManager[None]:
        """Surrounds a run of the model whose choices ``take`` returns."""
        return self._recorder.recording()

    def take(self) -> torch.Tensor | None:
        """[L, N, K]. None: there are no routers."""
        return self._recorder.take() if self._routers else None

    @contextmanager
    def forced(self, chosen_LNK: torch.Tensor | None) -> Iterator[None]:
        """Inside, the routers choose these experts. None: what they like."""
        if chosen_LNK is None:
            yield
            return
        for router, chosen_NK in zip(self._routers, chosen_LNK, strict=True):
            router.forced_NK = chosen_NK
        try:
            yield
        finally:
            for router in self._routers:
                router.forced_NK = None


def find_routers(model: nn.Module, experts: Mapping[str, AdaptableExperts], run: Callable[[], torch.Tensor]) -> Routers:
    """Find what chooses for each of the experts, and make it forceable, in place.

    ``run`` runs the model and returns its logits. The result is empty unless routers choose what is forced on them,
    and compute the same bits when their own choice is forced on them.
    """
    if not experts:
        return Routers()
    recorder = RoutingRecorder(experts.values())
    with recorder.recording():
        expected = run()
    own_LNK = recorder.take()
    routers = _look_for_routers(model, experts, run)
    if not len(routers):
        return routers
    others_LNK = (own_LNK + 1) % routers.experts
    with recorder.recording(), routers.forced(others_LNK):
        run()
    if not torch.equal(recorder.take(), others_LNK):
        return Routers()
    with routers.forced(own_LNK):
        again = run()
    return routers if torch.equal(again, expected) else Routers()


def _look_for_routers(model: nn.Module, experts: Mapping[str, AdaptableExperts], run: Callable[[], object]) -> Routers:
    returned: list[tuple[nn.Module, int]] = []  # modules, and the addresses of what they returned
    chosen: dict[AdaptableExperts, nn.Module] = {}

    def note(module: nn.Module, _: Any, output: Any) -> None:
        parts = output if isinstance(output, tuple) else (output,)
        returned.extend((module, part.data_ptr()) for part in parts if isinstance(part, torch.Tensor))

    def look(module: nn.Module, values: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        _, index, *_ = (*values, *named.values())
        found = next((router for router, address in reversed(returned) if address == index.data_ptr()), None)
        if found is not None:
            chosen[cast("AdaptableExperts", module)] = found

    kinds = set(experts.values())
    handles = [module.register_forward_hook(note) for module in model.modules()]
    handles += [module.register_forward_pre_hook(look, with_kwargs=True) for module in kinds]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    if len(chosen) != len(experts) or len(set(chosen.values())) != len(experts):
        return Routers()
    return Routers({module: _make_forceable(chosen[module], module.first.experts) for module in experts.values()})


def _make_forceable(router: nn.Module, experts: int) -> ForcedRouter:
    if not isinstance(router, ForcedRouter):
        kind = type(router)
        router.__class__ = type(kind.__name__, (ForcedRouter, kind), {"__module__": kind.__module__})
    forceable = cast("ForcedRouter", router)
    forceable.experts, forceable.forced_NK = experts, None
    return forceable
