from __future__ import annotations

import subprocess
import sys

import pytest

from chockstone.trainers.errors import ConfigInvalid
from chockstone.trainers.rollouts.arithmetic import Arithmetic
from chockstone.trainers.rollouts.environment import Completion, Environment, Problem


def problems(arithmetic: Arithmetic) -> list[Problem]:
    return [arithmetic.problem(index) for index in range(len(arithmetic))]


def reward(answer: str, text: str, *, is_truncated: bool = False) -> float:
    problem = Problem(problem_id="a", prompt="a", answer=answer)
    return Arithmetic().reward(problem, Completion(text=text, tokens=(), is_truncated=is_truncated))


def test_it_is_an_environment() -> None:
    environment: Environment = Arithmetic()  # the type checker is the test; below, what it cannot see

    assert environment.stop == ("\n",)


def test_every_pair_is_asked_once_with_its_answer() -> None:
    asked = problems(Arithmetic(largest=2))

    assert {problem.prompt: problem.answer for problem in asked} == {
        "0+0=": "0",
        "0+1=": "1",
        "0+2=": "2",
        "1+0=": "1",
        "1+1=": "2",
        "1+2=": "3",
        "2+0=": "2",
        "2+1=": "3",
        "2+2=": "4",
    }
    assert len({problem.problem_id for problem in asked}) == len(asked) == 9


def test_each_operation_has_its_own_problems() -> None:
    answers = {problem.problem_id: problem.answer for problem in problems(Arithmetic(largest=3, operations="-*+"))}

    assert len(answers) == 48
    assert (answers["2-3"], answers["2*3"], answers["2+3"]) == ("-1", "6", "5")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 1.0),
        (" 7\n", 1.0),
        ("7, I think", 1.0),
        ("8", 0.1),
        ("71", 0.1),
        ("07", 0.1),
        ("-7", 0.1),
        ("x7", 0.0),
        ("-", 0.0),
        ("", 0.0),
        ("\u0667", 0.0),  # a seven, but not one of ours
        ("\N{SUPERSCRIPT SEVEN}", 0.0),
    ],
)
def test_the_number_that_an_answer_begins_with_counts(text: str, expected: float) -> None:
    assert reward("7", text) == expected


def test_a_negative_answer_needs_its_sign() -> None:
    assert reward("-1", "-1") == 1.0
    assert reward("-1", "1") == 0.1


def test_an_answer_that_was_cut_off_counts_as_far_as_it_goes() -> None:
    assert reward("7", "7", is_truncated=True) == 1.0


def test_problems_held_out_are_not_trained_on() -> None:
    arithmetic = Arithmetic(largest=4, held_out=5)

    trained = {problem.problem_id for problem in problems(arithmetic)}
    held_out = {problem.problem_id for problem in arithmetic.evaluation()}

    assert (len(trained), len(held_out)) == (20, 5)
    assert trained.isdisjoint(held_out)


def test_with_none_held_out_evaluation_asks_all() -> None:
    arithmetic = Arithmetic(largest=4)

    assert arithmetic.evaluation() == problems(arithmetic)


def test_another_process_has_the_same_problems() -> None:
    code = (
        "from chockstone.trainers.rollouts.arithmetic import Arithmetic as A; "
        "a = A(largest=5, operations='+*', held_out=9); "
        "print([a.problem(i) for i in range(len(a))], a.evaluation())"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    here = Arithmetic(largest=5, operations="+*", held_out=9)
    assert said.strip() == f"{problems(here)} {here.evaluation()}"


def test_other_problems_have_another_name() -> None:
    names = {
        Arithmetic().name,
        Arithmetic(largest=5).name,
        Arithmetic(operations="*").name,
        Arithmetic(held_out=2).name,
    }

    assert len(names) == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"largest": 0}, "largest must be from 1 to 99, not 0"),
        ({"largest": 100}, "largest must be from 1 to 99, not 100"),
        ({"operations": ""}, "each once, not ''"),
        ({"operations": "++"}, "each once, not '\\+\\+'"),
        ({"operations": "+/"}, "some of \\+-\\*, each once, not '\\+/'"),
        ({"held_out": -1}, "held_out must be from 0 to 15, not -1"),
        ({"held_out": 16}, "held_out must be from 0 to 15, not 16"),
    ],
)
def test_options_that_make_no_problems_are_refused(options: dict[str, int | str], said: str) -> None:
    with pytest.raises(ConfigInvalid, match=said):
        Arithmetic(**options)  # type: ignore[arg-type]  # of either type, by its name
