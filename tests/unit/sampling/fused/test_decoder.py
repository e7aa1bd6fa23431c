from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # the name everyone reads

from chockstone.sampling.fused.decoder import _make_norm
from chockstone.sampling.fused.weights import Norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [None, 3])
def test_norms_of_every_precision_are_rms_norms(dtype: torch.dtype, heads: int | None) -> None:
    random = torch.Generator().manual_seed(1)
    shape = (16,) if heads is None else (heads, 16)
    weight = torch.rand(shape, generator=random).to(dtype)
    x = torch.randn((5, *shape), generator=random).to(dtype)

    normed = _make_norm(Norm(weight, 1e-5))(x)

    expected = F.rms_norm(x.float(), (16,), None, 1e-5) * weight.float()
    torch.testing.assert_close(normed.float(), expected, atol=2e-2 if dtype == torch.bfloat16 else 1e-6, rtol=1e-2)


def test_the_epsilon_keeps_a_row_of_zeros_finite() -> None:
    normed = _make_norm(Norm(torch.ones(8), 1e-6))(torch.zeros(2, 8))

    assert torch.equal(normed, torch.zeros(2, 8))
