from __future__ import annotations

import re

from chockstone.cli.output.exit_codes import EXIT_CODES, MEANINGS, ExitCode


def test_every_code_has_a_meaning_and_the_summary_names_only_real_codes() -> None:
    assert list(MEANINGS) == list(ExitCode)
    assert all(meaning.endswith(".") for meaning in MEANINGS.values())
    assert [int(code) for code in re.findall(r"\d+", EXIT_CODES)] == [0, 1, 2, 3, 130]
