from __future__ import annotations

import pytest
import typer

from chockstone.cli.commands.options import parsed


def test_a_value_that_cannot_be_parsed_is_a_mistake_in_its_option() -> None:
    assert parsed(int, "7", "--n") == 7
    with pytest.raises(typer.BadParameter, match="invalid literal") as caught:
        parsed(int, "x", "--n")
    assert caught.value.param_hint == "--n"
