from __future__ import annotations

import pytest

from chockstone.engine.runs.operations import request_id_of, run_of


def test_a_request_id_names_its_run() -> None:
    assert run_of(request_id_of("5d0e-4f:train:3", 7)) == "5d0e-4f:train:3"


@pytest.mark.parametrize(
    "forged",
    [
        "../runs/s:train:0:1",
        "..:train:0:1",
        "/etc:train:0:1",
        ":train:0:1",
        "s:train:0:train:0:1",
        "s:train:0:\u00b2",
        "s:train:\u0663:1",
        "s:train:0:1\n",
        "s:train:0:-1",
        "s:train:0:99999999999999999999",
        f"{'x' * 240}:train:0:1",
        f"{chr(233) * 100}:train:0:1",
        "s:sample:0:1",
    ],
)
def test_what_cannot_be_one_of_ours_names_no_run(forged: str) -> None:
    assert run_of(forged) is None
