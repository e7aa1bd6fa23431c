from __future__ import annotations

from typing import Any

from chockstone.cli.remote.metrics.step_rows import choose_columns, is_step_end, join_steps, titles


def point(position: int, step: int, source: str = "server", **values: float) -> dict[str, Any]:
    return {"position": position, "step": step, "source": source, "at": 1.0, "values": values}


PASS = {"loss": 2.0, "loss:sum": 20.0, "tokens": 1000.0, "seconds": 0.5}
STEP = {"learning_rate": 1e-4, "grad_norm": 0.25, "seconds": 0.25}


def test_the_passes_of_a_step_and_the_step_are_one_row() -> None:
    points = [point(1, 0, **PASS), point(2, 0, **{**PASS, "loss": 4.0}), point(3, 1, **STEP), point(4, 1, **PASS)]

    rows = join_steps(points)

    columns = choose_columns(points, None)
    assert titles(columns) == ("STEP", "LOSS", "LR", "GRAD NORM", "TOKENS", "SECONDS")
    assert [row.cells(columns) for row in rows] == [
        ("1", "3", "0.0001", "0.25", "2,000", "1.25"),
        ("2", "2", "", "", "1,000", "0.5"),
    ]


def test_what_clients_report_stands_beside_it() -> None:
    points = [
        point(1, 0, **PASS),
        point(2, 1, **STEP),
        point(3, 1, "client", reward=0.5, loss=9.0, a=1.0, b=2.0, c=3.0),
        point(4, 7, "client", reward=0.75),
    ]

    columns = choose_columns(points, None)
    rows = join_steps(points)

    assert columns[5:] == ["reward", "a", "b"]
    assert [row.cells(["reward"]) for row in rows] == [("1", "0.5"), ("7", "0.75")]


def test_chosen_series_are_the_columns() -> None:
    assert choose_columns([point(1, 0, **PASS)], ["reward", "loss"]) == ["reward", "loss"]
    assert titles(["x" * 40, "loss"]) == ("STEP", "X" * 19 + "…", "LOSS")


def test_a_merged_point_is_a_row_of_its_own_step() -> None:
    [row] = join_steps([{**point(8, 4, loss=1.0, grad_norm=2.0), "count": 8}])

    assert row.step == 4


def test_a_step_ends_with_the_optimizer() -> None:
    assert is_step_end(point(1, 1, **STEP))
    assert not is_step_end(point(1, 1, **PASS))
    assert not is_step_end(point(1, 1, "client", reward=1.0))
