# ruff: noqa: SIM905  # tables of words read better without quotes
"""Graph operations: the functions an uploaded loss may call.

Names from a client are looked up in the tables below and nowhere else. ``loss_meter`` measures what a call costs.
Left out on purpose: random numbers, in-place operations, and everything that leaves torch.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.nn import functional

from chockstone.backends.losses.loss_meter import find_tensors
from chockstone.wire.failures import BadRequest

Function = Callable[..., Any]

_MAX_INT: Final = 2**63
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


def function(name: str) -> Function:
    return _find(FUNCTIONS, name, "function")


def method(name: str) -> Function:
    return _find(METHODS, name, "tensor method")


def check_keywords(keywords: Sequence[str]) -> None:
    for keyword in keywords:
        if keyword in _FORBIDDEN_KEYWORDS:
            raise BadRequest(f"the argument {keyword!r} is not allowed in a custom loss.")


def _find(table: Mapping[str, Function], name: str, what: str) -> Function:
    if name not in table:
        raise BadRequest(
            f"the {what} {name!r:.80} is not allowed in a custom loss: it is random, works in place, leaves torch, "
            "or is not on this server's list. Run the loss on your side with forward_backward_custom(data, function)."
        )
    return table[name]


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
    masks = [tensor for tensor in find_tensors(index) if tensor.dtype == torch.bool]
    if masks and index is not masks[0]:
        raise BadRequest("a mask must be the only index, as in x[mask].")
    return owner[index]


def _never_in_place(function: Function) -> Function:
    """Refuses ``inplace`` as a positional argument. As a keyword it is refused when the loss is uploaded."""
    signature = inspect.signature(function)
    if "inplace" not in signature.parameters:
        return function

    def checked(*args: Any, **kwargs: Any) -> Any:
        if signature.bind(*args, **kwargs).arguments.get("inplace"):
            raise BadRequest("the argument 'inplace' is not allowed in a custom loss; leave it out.")
        return function(*args, **kwargs)

    return checked


def _functional(name: str) -> Function:
    function: Function = getattr(functional, name)
    return function if inspect.isbuiltin(function) else _never_in_place(function)


def _functions() -> dict[str, Function]:
    table: dict[str, Function] = {"getattr": _attribute}
    for prefix in ("torch", "torch.functional"):
        table |= {f"{prefix}.{name}": getattr(torch, name) for name in (*_PLAIN_TORCH, *_SHAPING_TORCH)}
    for prefix in ("torch.nn.functional", "torch._C._nn"):
        table |= {f"{prefix}.{name}": _functional(name) for name in (*_PLAIN_FUNCTIONAL, "pad")}
    table |= {f"torch.{name}": getattr(torch, name) for name in _PRODUCTS}
    table |= {f"operator.{name}": _arithmetic(getattr(operator, name)) for name in _ARITHMETIC}
    table["torch._C._nn.log_sigmoid"] = table["torch.nn.functional.logsigmoid"]
    table["torch.cosine_similarity"] = table["torch.nn.functional.cosine_similarity"]
    table["operator.pow"] = _arithmetic(_power)
    table["operator.matmul"] = torch.matmul
    table["operator.getitem"] = _getitem
    return table | {f"math.{name}": _math(getattr(math, name)) for name in _MATH}


def _methods() -> dict[str, Function]:
    names = (*_PLAIN_METHODS, *_SHAPING_METHODS, *_PRODUCTS)
    return {name: getattr(torch.Tensor, name) for name in names} | {"cpu": _stay}


def _stay(tensor: torch.Tensor) -> torch.Tensor:
    """Ignores a device: the loss runs on the device of the model, wherever the client traced it."""
    return tensor


FUNCTIONS: Final[Mapping[str, Function]] = _functions()
METHODS: Final[Mapping[str, Function]] = _methods()
