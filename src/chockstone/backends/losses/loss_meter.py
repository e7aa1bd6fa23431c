# ruff: noqa: SIM905  # tables of words read better without quotes
"""The loss meter: measures and limits the cost of a custom loss.

The meter sees every elementary operation of torch, forward and backward, before it runs, including those inside larger
functions such as ``quantile``. Memory is measured in bytes. Time is estimated from the sizes of the tensors alone, in
nanoseconds of a slow core. So a loss has the same cost each time and on every process, and whether it is refused does
not depend on the clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from chockstone.backends.protocol import LossLimits
from chockstone.wire.failures import BadRequest

DATUM_BYTES: Final = 1 << 28  # of all tensors of the forward pass together, and of each tensor of the backward pass
DATUM_WORK: Final = 2_000_000_000
PASS_WORK: Final = 30_000_000_000
TURN_WORK: Final = 250_000_000  # after which other tasks get a turn
OVERHEAD: Final = 25_000  # of any operation, however small

_ADVICE: Final = "or run the loss on your side with forward_backward_custom(data, function)."
_PART: Final = 1024  # bytes of a tensor object
_SMALL: Final = 1 << 20  # number of elements up to which an upper bound is good enough
_PLAIN: Final = 4  # per element read or written
_SLOW: Final = 60
_SORTED: Final = 8  # per element, times the logarithm of their number
_SLOW_NAMES: Final = frozenset(
    """
    _index_put_impl acos acosh asin asinh atan atan2 atanh cos cosh cummax cummin cumprod cumsum digamma erf erfc
    erfinv exp2 expm1 floor_divide fmod gather gelu gelu_backward hypot index index_add index_put index_select lerp
    lgamma log10 log1p log2 logaddexp logaddexp2 logcumsumexp logit logit_backward mish mish_backward nonzero pow
    remainder renorm repeat_interleave scatter scatter_add sin sinc sinh softplus softplus_backward tan tanh where xlogy
    """.split()
)
_WITHIN_INPUTS: Final = frozenset(  # create no more elements than they are given
    """
    _log_softmax _log_softmax_backward_data _softmax _softmax_backward_data _to_copy cat clone cummax cummin cumprod
    cumsum empty_like flip full_like gather gelu_backward hardswish_backward hardtanh_backward huber_loss_backward
    index_put leaky_relu_backward log_sigmoid_backward log_sigmoid_forward logcumsumexp mish_backward mse_loss_backward
    ones_like roll scatter scatter_add sigmoid_backward silu_backward smooth_l1_loss_backward softplus_backward stack
    tanh_backward threshold_backward tril triu zeros_like
    """.split()
)
_SORTING: Final = frozenset("argsort kthvalue median mode nanmedian sort topk unique".split())
_PRODUCTS: Final = frozenset("addbmm addmm addmv baddbmm bmm dot mm mv vdot".split())
_FAST_PRODUCTS: Final = frozenset({torch.float32, torch.float64})


class LossMeter(TorchDispatchMode):
    """While active, counts what the loss of one datum and its gradient cost. Raises BadRequest if that is too much."""

    def __init__(self, *, pass_left: int, is_enforced: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.work = 0
        self.size_bytes = 0
        self.is_backward = False
        self._pass_left = pass_left
        self._is_enforced = is_enforced

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kind = _kind(func)
        name = kind.name
        tensors = find_tensors(args)
        if kwargs:
            tensors += find_tensors(kwargs)
        made_bytes, made = _measure(func, kind, args, kwargs, tensors)
        if self._is_enforced:
            self._check_operation(name, made_bytes)
        self.add_work(OVERHEAD + (made * _PLAIN if kind.is_view else _estimate(name, tensors, made)))
        result = func(*args, **kwargs)
        if not self.is_backward and made_bytes:
            self._add_bytes(sum(tensor.nbytes for tensor in find_tensors(result)))
        return result

    def add_work(self, work: int) -> None:
        self.work += work
        if not self._is_enforced:
            return
        if self.work > DATUM_WORK:
            raise BadRequest(
                f"it takes too long: more than {DATUM_WORK / 1e9:.0f} s by estimate for one datum. Use fewer or "
                f"smaller operations, send shorter datums, {_ADVICE}"
            )
        if self.work > self._pass_left:
            raise too_long()

    def _check_operation(self, name: str, made_bytes: int) -> None:
        if "linalg" in name and name != "linalg_vector_norm":
            raise BadRequest(f"{name.strip('_')!r} is not allowed in a custom loss. Use another operation, {_ADVICE}")
        if made_bytes > DATUM_BYTES:
            raise _too_large()

    def _add_bytes(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        if self._is_enforced and self.size_bytes > DATUM_BYTES:
            raise _too_large()


class PassBudget:
    """What the custom loss of one pass has cost so far, in all processes."""

    def __init__(self, limits: LossLimits = "enforced") -> None:
        self.limits = limits
        self._settled = 0  # of micro-batches that all processes have finished
        self._here = 0  # of the present micro-batch, in this process
        self._turn = 0

    def meter(self) -> LossMeter | None:
        """A meter for the next datum; None: it is not metered."""
        if self.limits == "unmetered":
            return None
        return LossMeter(pass_left=PASS_WORK - self._settled - self._here, is_enforced=self.limits == "enforced")

    @property
    def work_here(self) -> int:
        return self._here

    def spend(self, work: int) -> None:
        """Add the cost of a datum."""
        self._here += work
        self._turn += work

    def is_turn_over(self) -> bool:
        """Whether the compute turn should end; if so, the next one begins."""
        if self._turn < TURN_WORK:
            return False
        self._turn = 0
        return True

    def settle(self, work: int) -> None:
        """Add the cost of a finished micro-batch of all processes. All processes call this with the same ``work``."""
        self._settled += work
        self._here = self._turn = 0
        if self.limits == "enforced" and self._settled > PASS_WORK:
            raise too_long()


def too_long() -> BadRequest:
    return BadRequest(
        f"the custom loss takes too long: more than {PASS_WORK / 1e9:.0f} s by estimate for all datums of the request. "
        f"Send fewer datums at a time, use fewer operations, {_ADVICE}"
    )


def find_tensors(values: Any) -> list[torch.Tensor]:  # Any: arguments, nested
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in find_tensors(value)]
    return [tensor for value in values.values() for tensor in find_tensors(value)] if isinstance(values, dict) else []


def _too_large() -> BadRequest:
    return BadRequest(
        f"it makes more than {DATUM_BYTES >> 20} MiB of numbers for one datum. Use smaller tensors, send shorter "
        f"datums, {_ADVICE}"
    )


def _estimate(name: str, tensors: Sequence[torch.Tensor], made: int) -> int:
    touched = made + sum(tensor.numel() for tensor in tensors)
    if name in _PRODUCTS:
        left, right = tensors[-2:]
        products = left.numel() * (right.shape[-1] if right.ndim > 1 else 1)
        return touched + (products // 4 if left.dtype in _FAST_PRODUCTS else products * 4)
    if name in _SORTING:
        return touched * _SORTED * touched.bit_length()
    return touched * (_SLOW if name.rstrip("_") in _SLOW_NAMES else _PLAIN)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Properties of an operation that do not depend on its arguments."""

    name: str
    is_view: bool
    makes_nothing: bool
    bound: Literal["broadcast", "inputs"] | None  # upper bound on the number of elements it creates


@lru_cache(maxsize=4096)
def _kind(func: Any) -> _Kind:  # Any: torch has no type for operations
    name = func.overloadpacket.__name__
    is_pointwise = torch.Tag.pointwise in func.tags
    is_within = torch.Tag.reduction in func.tags or name in _WITHIN_INPUTS
    return _Kind(
        name,
        func.is_view,
        func.is_view or func._schema.is_mutable or name == "_local_scalar_dense",
        "broadcast" if is_pointwise else "inputs" if is_within else None,
    )


def _measure(
    func: Any, kind: _Kind, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> tuple[int, int]:
    """Bytes and elements that an operation creates, or an upper bound. Views and in-place operations create none."""
    name = kind.name
    if name in ("split", "split_with_sizes", "unbind"):
        parts = _count_parts(name, args, kwargs)
        return parts * _PART, parts * (OVERHEAD // _PLAIN)
    if kind.makes_nothing:
        return 0, 0
    if name == "nonzero":
        count = args[0].numel() * max(args[0].ndim, 1)
    elif name == "index" and any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors[1:]):
        count = args[0].numel()
    elif name == "repeat_interleave":
        # torch writes beyond its result when the sum of the repeats overflows, or when negative ones make it smaller.
        if bool((args[0] < 0).any()):
            raise BadRequest(f"repeats must not be negative. Clamp them, {_ADVICE}")
        count = int(args[0].double().sum())
    else:
        count = _broadcast(tensors) if kind.bound == "broadcast" else sum(tensor.numel() for tensor in tensors)
        if kind.bound is None or count > _SMALL:
            return _try_without_data(func, args, kwargs, tensors)
    return 8 * count, count


def _count_parts(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    if name == "split_with_sizes":
        return len(args[1])
    place = 2 if name == "split" else 1
    dim = args[place] if len(args) > place else kwargs.get("dim", 0)
    size = int(args[0].shape[dim])
    return size if name == "unbind" else -(-size // max(int(args[1]), 1))


def _broadcast(tensors: Sequence[torch.Tensor]) -> int:
    shapes = {tensor.shape for tensor in tensors}
    if len(shapes) == 1:
        return math.prod(next(iter(shapes)))
    try:
        return math.prod(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]  # torch has no types here
    except RuntimeError:  # the operation itself raises a better message
        return 0


def _try_without_data(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> tuple[int, int]:
    """What the operation creates on the meta device, where tensors have sizes and no data."""
    try:
        made = find_tensors(func(*_to_meta(list(args)), **_to_meta(dict(kwargs))))
    except NotImplementedError:  # such operations create no more than they are given
        count = sum(tensor.numel() for tensor in tensors)
        return 8 * count, count
    return sum(tensor.nbytes for tensor in made), sum(tensor.numel() for tensor in made)


def _to_meta(value: Any) -> Any:  # Any: arguments, nested
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        items = [_to_meta(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: _to_meta(item) for key, item in value.items()}
    return torch.device("meta") if isinstance(value, torch.device) else value
