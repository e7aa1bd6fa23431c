from __future__ import annotations

import pytest

from chockstone.cli.watching.sparkline import ASCII, sparkline


@pytest.mark.parametrize(
    ("values", "width", "shown"),
    [
        ([], 10, ""),
        ([1.0], 0, ""),
        ([1.0, 2.0], 10, "▁█"),
        ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 8, "█▇▆▅▄▃▂▁"),
        ([5.0, 5.0, 5.0], 2, "▁▁"),
        ([4.0, 4.0, 0.0, 0.0], 2, "█▁"),
    ],
)
def test_a_curve_fits_its_width(values: list[float], width: int, shown: str) -> None:
    assert sparkline(values, width) == shown


def test_a_terminal_without_unicode_gets_ascii() -> None:
    curve = sparkline([3.0, 2.0, 1.0], 10, levels=ASCII)

    assert curve.isascii()
    assert len(curve) == 3
