from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from chockstone.sampling.products import matmul as module
from chockstone.sampling.products.matmul import is_mkl_slow, linear, matmul

HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"


@pytest.fixture(params=[False, True], ids=["mkl", "onednn"])
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # of torch
        pytest.skip("torch has no oneDNN here")
    monkeypatch.setattr(module, "is_mkl_slow", lambda: request.param)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


LAYOUTS = {
    "plain": (numbers(40, 256), numbers(256, 96)),
    "a weight as models keep it": (numbers(40, 256), numbers(96, 256).t()),
    "every second row": (numbers(80, 256)[::2], numbers(256, 96)),
    "some columns": (numbers(40, 300)[:, 7:263], numbers(256, 200)[:, 50:146]),
    "turned rows": (numbers(256, 40).t(), numbers(256, 96)),
    "one row": (numbers(1, 256), numbers(256, 96)),
    "no rows": (numbers(0, 256), numbers(256, 96)),
    "a small weight": (numbers(40, 16), numbers(16, 8)),
}


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_product_is_the_product(layout: str) -> None:
    x, weight = LAYOUTS[layout]

    torch.testing.assert_close(matmul(x, weight), x @ weight, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_linear_layer_takes_any_leading_axes_and_a_bias(dtype: torch.dtype) -> None:
    x, weight, bias = numbers(2, 5, 256).to(dtype), numbers(96, 256).to(dtype), numbers(96).to(dtype)

    for chosen in (bias, None):
        expected = torch.nn.functional.linear(x, weight, chosen)
        torch.testing.assert_close(linear(x, weight, chosen), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(not HAS_AVX512, reason="this CPU has no AVX-512")
def test_in_onednn_a_rows_bits_do_not_depend_on_the_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_mkl_slow", lambda: True)
    x, weight = numbers(300, 256), numbers(96, 256).t()
    whole = matmul(x, weight)

    for start, stop in ((0, 2), (5, 8), (17, 49), (3, 300), (100, 229)):
        assert torch.equal(matmul(x[start:stop], weight), whole[start:stop])


@pytest.fixture
def _asked_again() -> Iterator[None]:
    is_mkl_slow.cache_clear()
    yield
    is_mkl_slow.cache_clear()


@pytest.mark.usefixtures("_asked_again")
@pytest.mark.parametrize(
    ("facts", "capability", "expected"),
    [
        ("vendor_id\t: AuthenticAMD", "AVX512", True),
        ("vendor_id\t: AuthenticAMD", "AVX2", False),
        ("vendor_id\t: GenuineIntel", "AVX512", False),
        ("CPU implementer\t: 0x41", "AVX512", False),
        (None, "AVX512", False),
    ],
)
def test_mkl_is_slow_on_avx512_of_other_makers_than_intel(
    facts: str | None, capability: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    if facts is not None:
        path.write_text(facts)
    monkeypatch.setattr(module, "_CPU_FACTS", path)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)

    assert is_mkl_slow() is expected
