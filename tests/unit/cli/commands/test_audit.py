from __future__ import annotations

from support.cli.usage import check_help


def test_help_teaches_by_example_and_names_the_exit_codes() -> None:
    check_help(["audit"])
