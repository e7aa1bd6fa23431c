from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def test_progress_goes_to_the_terminal_and_not_into_the_output(
    store: Path, in_terminal: Callable[..., tuple[int, str]]
) -> None:
    code, shown = in_terminal("verify", store, "run-1/step-00000000")

    assert code == 0
    assert "━" in shown
    assert "run-1/step-00000000: ok" in shown
