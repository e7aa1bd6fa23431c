from __future__ import annotations

import pytest

from chockstone.wire.sizes import format_bytes


@pytest.mark.parametrize(
    ("size_bytes", "spelled"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1000 bytes (1.0 kB)"),
        (999_960, "999960 bytes (1.0 MB)"),
        (1 << 30, "1073741824 bytes (1.1 GB)"),
        (5 * 10**21, f"{5 * 10**21} bytes (5000.0 EB)"),
    ],
)
def test_a_size_is_exact_and_readable(size_bytes: int, spelled: str) -> None:
    assert format_bytes(size_bytes) == spelled
