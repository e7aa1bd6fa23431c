"""Matrix products of float32 on a CPU, in the faster of the two libraries that torch brings.

torch uses MKL, which leaves half of the vector width of AVX-512 unused on CPUs of other makers than Intel. oneDNN uses
all of it: it takes half of the time there. Which library is used depends on the machine and on the shape of the second
matrix, so the same product has the same bits each time. In oneDNN, a row's bits do not depend on the other rows, if
there are any.

Shapes: N rows, K inputs, M outputs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import torch

_SMALLEST: Final = 1 << 14  # elements of the second matrix; below, a call of oneDNN takes longer
_CPU_FACTS: Final = Path("/proc/cpuinfo")


def matmul(x_NK: torch.Tensor, weight_KM: torch.Tensor) -> torch.Tensor:
    """``x @ weight``, without a gradient."""
    if not _is_for_onednn(x_NK, weight_KM):
        return torch.mm(x_NK, weight_KM)
    y_NM: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x_NK, weight_KM.t(), None, "none", [], "")
    return y_NM


def linear(x: torch.Tensor, weight_MK: torch.Tensor, bias_M: torch.Tensor | None) -> torch.Tensor:
    """``functional.linear``, without a gradient."""
    if not _is_for_onednn(x, weight_MK):
        return torch.nn.functional.linear(x, weight_MK, bias_M)
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight_MK, bias_M, "none", [], "")
    return y


def _is_for_onednn(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        weight.numel() >= _SMALLEST
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and x.numel() > x.shape[-1]  # one row reads the matrix once, in any library
        and is_mkl_slow()
    )


@cache
def is_mkl_slow() -> bool:
    """Whether this CPU has AVX-512, and is none that MKL uses it on."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    if not has_onednn or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        facts = _CPU_FACTS.read_text()
    except OSError:
        return False
    return "vendor_id" in facts and "GenuineIntel" not in facts
