"""The instruction probe: a short program that computes in bfloat16 and float16 like a worker, in its own process.

If the CPU advertises instructions that it cannot run, this process dies instead of the worker. Its exit code is 0 if
all results are right, and ``WRONG`` if one is wrong.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from typing import Final

WRONG: Final = 3
_SHAPES: Final = ((1, 64, 64), (16, 64, 48), (64, 64, 64), (130, 256, 96))  # rows, inner, columns


def main() -> int:
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core dump: this process may well die
    import torch
    from torch.nn.functional import linear, scaled_dot_product_attention

    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float16):
        for rows, inner, columns in _SHAPES:
            left = torch.randn(rows, inner)
            weight = torch.randn(columns, inner)
            low_left, low_weight = (tensor.to(dtype).requires_grad_() for tensor in (left, weight))
            result = linear(low_left, low_weight, torch.zeros(columns, dtype=dtype))
            torch.autograd.backward(result.sum())
            batched = torch.stack([low_left.detach()] * 2) @ low_weight.detach().T
            expected = left @ weight.T
            for found in (result.detach(), batched[1]):
                if not torch.allclose(found.float(), expected, rtol=0.05, atol=0.05 * inner**0.5):
                    return WRONG
        heads = torch.randn(1, 2, 32, 16).to(dtype)
        scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
