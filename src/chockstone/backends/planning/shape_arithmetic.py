# tensors carry their axes
"""Shape arithmetic: lets training code run on the meta device, where tensors have no numbers.

Attention is that of fused kernels: it keeps queries, keys, values, output and a number per row, but no scores. Numbers
that training code reads from tensors are invented. The rows of experts are the only shapes that depend on such numbers:
every expert gets as many.

Shapes: B batch, H heads, T time, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.autograd.graph import _engine_run_backward
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

_INVENTED: Final[Mapping[Any, Any]] = {
    torch.Tensor.__bool__: True,
    torch.Tensor.__float__: 1.0,
    torch.Tensor.__int__: 1,
    torch.Tensor.item: 1.0,
}


class ShapeArithmetic(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self._counted = WeakTensorKeyDictionary()  # counts of experts -> how many rows were counted

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: as torch calls it
        named = kwargs or {}
        if func is torch.autograd.backward:
            return self._run_backward(*args, **named)
        if not (args and isinstance(args[0], torch.Tensor) and args[0].is_meta):
            return func(*args, **named)
        if func in _INVENTED:
            return _INVENTED[func]
        if func is torch.Tensor.cpu:
            return args[0]
        if func is torch.histc:
            return args[0].new_empty(named["bins"])
        if func is torch.bincount:
            counts = args[0].new_empty(named["minlength"], dtype=torch.int64)
            self._counted[counts] = args[0].numel()
            return counts
        if func is torch.Tensor.tolist and args[0] in self._counted:
            share, rest = divmod(self._counted[args[0]], len(args[0]))
            return [share + (number < rest) for number in range(len(args[0]))]
        if func is scaled_dot_product_attention:
            return _FusedAttention.apply(*args[:3])  # type: ignore[no-untyped-call]  # torch has no types here
        return func(*args, **named)

    def _run_backward(self, tensors: tuple[torch.Tensor, ...], *, grad_tensors: torch.Tensor, **_: object) -> None:
        """Inside of it, layers that recompute run on shapes, too."""
        with self:
            _engine_run_backward(
                tensors, (grad_tensors,), False, False, (), allow_unreachable=True, accumulate_grad=True
            )


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_BHTD: torch.Tensor, k_BHTD: torch.Tensor, v_BHTD: torch.Tensor) -> torch.Tensor:
        batch, heads, time, _ = q_BHTD.shape
        out_BTHD = q_BHTD.new_empty(batch, time, heads, v_BHTD.shape[-1])
        sums_BHT = q_BHTD.new_empty(batch, heads, time, dtype=torch.float32)
        out_BHTD = out_BTHD.transpose(1, 2)
        ctx.save_for_backward(q_BHTD, k_BHTD, v_BHTD, out_BHTD, sums_BHT)
        return out_BHTD

    @staticmethod
    def backward(ctx: Any, _grad_BHTD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q_BHTD, k_BHTD, v_BHTD, _out, _sums = ctx.saved_tensors
        return torch.empty_like(q_BHTD), torch.empty_like(k_BHTD), torch.empty_like(v_BHTD)
