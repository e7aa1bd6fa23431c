from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[4] / "docs" / "reference" / "command_line.py"


def test_the_reference_is_what_the_help_says() -> None:
    spec = importlib.util.spec_from_file_location("command_line", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    assert script.render() == script.PAGE.read_text(), "run `make reference`"
