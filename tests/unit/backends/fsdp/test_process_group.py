from __future__ import annotations

import pytest

from support.backends.fsdp.pool import Pool
from support.backends.saving import make_directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_directory(tmp_path_factory.mktemp("models") / "qwen3", "qwen3", tied=True))


@pytest.mark.parametrize("rank", [4, 0])
def test_what_one_process_must_refuse_all_refuse(pair: Pool, directory: str, rank: int) -> None:
    answers = pair.run("refuse_together", directory=directory, rank=rank)

    assert answers[0]["said"] == answers[1]["said"]
    assert answers[0]["said"][0] == answers[0]["said"][1]
    assert answers[0]["said"][0].startswith("BadRequest: datum 1: custom loss")
    assert max(answer["gap"] for answer in answers) <= 1e-5


def test_all_processes_take_what_the_first_one_has(pair: Pool) -> None:
    answers = pair.run("exchange")

    assert [answer["rank"] for answer in answers] == [0, 1]
    assert [answer["sum"] for answer in answers] == [3.0, 3.0]
    assert [answer["gathered"] for answer in answers] == [[[1.0], [2.0, 2.0]]] * 2
    assert [answer["broadcast"] for answer in answers] == [[0, 0, 0]] * 2
    assert [answer["decided"] for answer in answers] == [True, True]


def test_an_error_that_is_no_refusal_ends_the_group(pair: Pool) -> None:
    assert pair.run("lose_the_group") == ["rank 0: ValueError: broken", "rank 1: ValueError: broken"]
