# ruff: noqa: SIM905  # tables of words read better without quotes
"""Graph operations: the functions an uploaded loss may call, and how large their results may be.

Nothing is looked up by a name from outside except in the tables below. Three kinds:

    plain      elementwise functions and reductions: never larger than their tensors broadcast together
    shaping    anything whose size depends on numbers: tried on the meta device first, where tensors have no data
    python     arithmetic and indexing on whatever the operands are

Absent on purpose: random numbers, changes in place, data-dependent sizes (but ``x[mask]``), anything
that leaves torch.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.nn import functional

from chockstone.wire.failures import BadRequest

Function = Callable[..., Any]
Claim = Callable[[int], None]  # told how many elements a result will have, before it is made

_MAX_INT: Final = 2**63
_MAX_PRODUCT: Final = 2**31  # multiplications in one matrix product
_FORBIDDEN_KEYWORDS: Final = frozenset({"out", "generator", "pin_memory", "requires_grad", "inplace"})

_PLAIN_TORCH: Final = """
    abs acos acosh add addcdiv addcmul all amax amin aminmax any argmax argmin argsort asin asinh atan atan2 atanh ceil
    clamp clamp_max clamp_min clip clone copysign cos cosh count_nonzero cummax cummin cumprod cumsum diff div divide eq
    erf erfc erfinv exp exp2 expm1 fix flip floor floor_divide fmax fmin fmod frac ge greater
    greater_equal gt heaviside hypot isclose isfinite isinf isnan le lerp less less_equal lgamma log log10 log1p log2
    log_softmax logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor logit logsumexp lt
    masked_fill max maximum mean median min minimum mul multiply nan_to_num nanmean nanmedian nanquantile nansum ne neg
    negative norm not_equal ones_like pow prod quantile reciprocal relu remainder renorm roll round rsqrt rsub
    selu sigmoid sign signbit sin sinc sinh softmax sort sqrt square std std_mean sub subtract sum tan tanh topk trace
    tril triu true_divide trunc var var_mean where xlogy zeros_like full_like
""".split()
_PLAIN_FUNCTIONAL: Final = """
    binary_cross_entropy binary_cross_entropy_with_logits cosine_similarity elu gelu hardsigmoid hardswish hardtanh
    huber_loss kl_div l1_loss leaky_relu log_softmax logsigmoid margin_ranking_loss mish mse_loss normalize relu relu6
    sigmoid silu smooth_l1_loss softmax softmin softplus softshrink softsign tanh tanhshrink
""".split()
_PLAIN_METHODS: Final = """
    abs acos add addcdiv addcmul all amax amin any argmax argmin argsort asin atan atan2 bfloat16 bool ceil clamp
    clamp_max clamp_min clip clone contiguous cos cosh count_nonzero cpu cummax cummin cumprod cumsum detach diff div
    divide double eq erf erfc exp exp2 expm1 flip float floor floor_divide fmax fmin fmod frac ge gt half heaviside int
    isclose isfinite isinf isnan le lerp lgamma log log10 log1p log2 log_softmax logaddexp logcumsumexp logical_and
    logical_not logical_or logical_xor logit logsumexp long lt masked_fill max maximum mean median min minimum mul
    multiply nan_to_num nanmean nanmedian nansum ne neg negative norm pow prod quantile reciprocal relu remainder round
    roll rsqrt sigmoid sign sin sinc sinh softmax sort sqrt square std sub subtract sum tan tanh to topk tril triu
    true_divide trunc type_as var where xlogy
    dim nelement numel size ndimension is_floating_point
""".split()
_SHAPING_TORCH: Final = """
    arange atleast_1d atleast_2d broadcast_to cat chunk column_stack concat concatenate diag diag_embed diagonal eye
    flatten full gather hstack index_select linspace movedim moveaxis narrow ones outer permute ravel repeat_interleave
    reshape scalar_tensor scatter scatter_add select split squeeze stack swapaxes t take take_along_dim tile transpose
    unbind unflatten unsqueeze vstack zeros
""".split()
_SHAPING_METHODS: Final = """
    broadcast_to chunk diag diagonal expand expand_as flatten gather index_select movedim narrow new_full
    new_ones new_zeros outer permute ravel repeat reshape reshape_as scatter scatter_add select split squeeze swapaxes t
    take_along_dim tile transpose unbind unflatten unfold unsqueeze view view_as
""".split()
_PRODUCTS: Final = "dot inner matmul mm mv vdot".split()
_ARITHMETIC: Final = """
    abs add and_ eq floordiv ge gt inv invert le lt mod mul ne neg not_ or_ pos sub truediv xor
""".split()
_MATH: Final = """
    ceil cos erf exp expm1 fabs floor isfinite isinf isnan lgamma log log10 log1p log2 sin sqrt tan tanh
""".split()
_ATTRIBUTES: Final[Mapping[str, Function]] = {
    "shape": lambda tensor: tensor.shape,
    "ndim": lambda tensor: tensor.ndim,
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: tensor.device,
    "T": lambda tensor: tensor.T,
    "mT": lambda tensor: tensor.mT,
}


class Operation:
    """One allowed function. ``claim`` may refuse its result before it is made."""

    def __init__(self, function: Function, measure: Callable[..., int | None]) -> None:
        self._function = function
        self._measure = measure

    def __call__(self, claim: Claim, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        size = self._measure(self._function, args, kwargs)
        if size:
            claim(size)
        return self._function(*args, **kwargs)


def function(name: str) -> Operation:
    return _find(FUNCTIONS, name, "function")


def method(name: str) -> Operation:
    return _find(METHODS, name, "tensor method")


def check_keywords(keywords: Sequence[str]) -> None:
    for keyword in keywords:
        if keyword in _FORBIDDEN_KEYWORDS:
            raise BadRequest(f"the argument {keyword!r} is not allowed in a custom loss.")


def _find(table: Mapping[str, Operation], name: str, what: str) -> Operation:
    if name not in table:
        raise BadRequest(
            f"the {what} {name!r:.80} is not allowed in a custom loss: it is random, works in place, leaves torch, "
            "or is not on this server's list. Run the loss on your side with forward_backward_custom(data, function)."
        )
    return table[name]


def _tensors(values: Any) -> list[torch.Tensor]:  # Any: arguments, nested
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in _tensors(value)]
    return [tensor for value in values.values() for tensor in _tensors(value)] if isinstance(values, dict) else []


def _broadcast(_: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    shapes = {tensor.shape for tensor in _tensors([args, dict(kwargs)])}
    if len(shapes) <= 1:
        return math.prod(next(iter(shapes), ()))
    try:
        return math.prod(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]  # torch's
    except RuntimeError:  # not elementwise after all, such as a concatenation: never more than all of it
        return sum(math.prod(shape) for shape in shapes)


def _trial(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    with torch.device("meta"):
        result = function(*_to_meta(list(args)), **_to_meta(dict(kwargs)))
    return sum(tensor.numel() for tensor in _tensors(result))


def _to_meta(value: Any) -> Any:  # Any: arguments, nested
    if isinstance(value, torch.Tensor):
        return value.detach().to("meta")
    if isinstance(value, list | tuple):
        items = [_to_meta(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: _to_meta(item) for key, item in value.items()}
    return torch.device("meta") if isinstance(value, torch.device) else value


def _product(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    size = _trial(function, args, kwargs)
    inner = max((tensor.shape[-1] for tensor in _tensors(list(args)) if tensor.ndim), default=1)
    if size * inner > _MAX_PRODUCT:
        raise BadRequest(f"a matrix product of {size} × {inner} multiplications is too large for a custom loss.")
    return size


def _known(*_: Any) -> None:
    return None


def _arithmetic(function: Function) -> Function:
    def checked(*operands: Any) -> Any:
        for operand in operands:
            if not isinstance(operand, torch.Tensor | int | float):
                raise BadRequest(f"arithmetic on a {type(operand).__name__} is not allowed in a custom loss.")
        result = function(*operands)
        if isinstance(result, int) and abs(result) >= _MAX_INT:
            raise BadRequest("a whole number in the custom loss does not fit 64 bits.")
        return result

    return checked


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and abs(exponent) > 64:
        raise BadRequest(f"{base!r:.40} to the power of {exponent!r:.40} is too large for a custom loss.")
    return base**exponent


def _math(function: Function) -> Function:
    def checked(*numbers: Any) -> Any:
        if not all(isinstance(number, int | float) for number in numbers):
            raise BadRequest(f"math.{function.__name__} takes numbers; use torch.{function.__name__} for tensors.")
        return function(*numbers)

    return checked


def _attribute(owner: Any, name: Any) -> Any:
    if not isinstance(owner, torch.Tensor) or name not in _ATTRIBUTES:
        raise BadRequest(f"reading {name!r:.80} of a {type(owner).__name__} is not allowed in a custom loss.")
    return _ATTRIBUTES[name](owner)


def _getitem(owner: Any, index: Any) -> Any:
    if not isinstance(owner, torch.Tensor | tuple | list):
        raise BadRequest(f"indexing a {type(owner).__name__} is not allowed in a custom loss.")
    return owner[index]


def _item_size(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    owner, index = args
    if not isinstance(owner, torch.Tensor):
        return None
    masks = [tensor for tensor in _tensors(index) if tensor.dtype == torch.bool]
    if not masks:
        return _trial(function, args, kwargs)
    if index is not masks[0]:
        raise BadRequest("a mask must be the only index, as in x[mask].")
    return owner.numel()


def _functions() -> dict[str, Operation]:
    table: dict[str, Operation] = {"getattr": Operation(_attribute, _known)}
    for names, prefixes, home, measure in (
        (_PLAIN_TORCH, ("torch", "torch.functional"), torch, _broadcast),
        (_PLAIN_FUNCTIONAL, ("torch.nn.functional", "torch._C._nn"), functional, _broadcast),
        (_SHAPING_TORCH, ("torch", "torch.functional"), torch, _trial),
        (["pad"], ("torch.nn.functional", "torch._C._nn"), functional, _trial),
        (_PRODUCTS, ("torch",), torch, _product),
    ):
        for prefix in prefixes:
            table |= {f"{prefix}.{name}": Operation(getattr(home, name), measure) for name in names}
    table |= {f"operator.{name}": Operation(_arithmetic(getattr(operator, name)), _broadcast) for name in _ARITHMETIC}
    table["torch._C._nn.log_sigmoid"] = table["torch.nn.functional.logsigmoid"]
    table["torch.cosine_similarity"] = table["torch.nn.functional.cosine_similarity"]
    table["operator.pow"] = Operation(_arithmetic(_power), _broadcast)
    table["operator.matmul"] = Operation(torch.matmul, _product)
    table["operator.getitem"] = Operation(_getitem, _item_size)
    table |= {f"math.{name}": Operation(_math(getattr(math, name)), _known) for name in _MATH}
    return table


def _methods() -> dict[str, Operation]:
    table = {name: Operation(getattr(torch.Tensor, name), _broadcast) for name in _PLAIN_METHODS}
    table |= {name: Operation(getattr(torch.Tensor, name), _trial) for name in _SHAPING_METHODS}
    return table | {name: Operation(getattr(torch.Tensor, name), _product) for name in _PRODUCTS}


FUNCTIONS: Final[Mapping[str, Operation]] = _functions()
METHODS: Final[Mapping[str, Operation]] = _methods()
