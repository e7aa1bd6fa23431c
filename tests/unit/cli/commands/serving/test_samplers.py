from __future__ import annotations

import pytest

from support.cli.usage import check_help


@pytest.mark.parametrize("words", [["samplers", each] for each in ("ls", "check")], ids=" ".join)
def test_help_teaches_by_example_and_names_the_exit_codes(words: list[str]) -> None:
    check_help(words)
