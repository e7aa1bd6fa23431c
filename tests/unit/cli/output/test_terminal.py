from __future__ import annotations

from chockstone.cli.output.terminal import lay_out


def test_a_cell_that_is_too_long_ends_its_line_and_the_columns_stay() -> None:
    rows = [("short", "1 kB", "good"), ("x" * 30, "20 kB", "y" * 30), ("other", "3 kB", "good")]

    laid = lay_out(("NAME", "SIZE", "STATE"), rows, right=("SIZE",), longest=10)

    assert "\n".join(laid).splitlines() == [
        "NAME    SIZE  STATE",
        "short   1 kB  good",
        "x" * 30,
        f"       20 kB  {'y' * 30}",
        "other   3 kB  good",
    ]


def test_without_a_limit_each_row_is_a_line() -> None:
    laid = lay_out(("NAME", "SIZE"), [("x" * 300, "1 kB")])

    assert laid == [f"NAME{' ' * 296}  SIZE", f"{'x' * 300}  1 kB"]
