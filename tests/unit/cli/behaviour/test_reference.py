from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"


@pytest.mark.parametrize("name", ["command_line", "settings"])
def test_the_reference_is_what_the_program_says(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, REFERENCE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    assert script.render() == script.PAGE.read_text(), "run `make reference`"
