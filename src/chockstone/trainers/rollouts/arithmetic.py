"""The built-in environment: sums of small numbers, which a model of a million random weights learns in minutes.

A prompt is ``3+4=``. The reward looks at the number at the start of the answer.
"""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable, Mapping
from typing import Final

from chockstone.trainers.errors import ConfigInvalid
from chockstone.trainers.rollouts.environment import Completion, Problem

RIGHT: Final = 1.0
A_NUMBER: Final = 0.1  # for any number: a random model learns digits first, and answers later

_OPERATIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_NUMBER: Final = re.compile(r"\s*(-?[0-9]+)")
_LARGEST: Final = 99  # 30,000 problems, all made in the constructor


class Arithmetic:
    """Every pair of numbers from 0 to ``largest``, with each of the ``operations``.

    ``held_out`` problems, always the same ones, are used for evaluation only. With 0, evaluation uses the problems
    that are trained on: with so few, the model learns a table, not a rule.
    """

    stop = ("\n",)

    def __init__(self, *, largest: int = 3, operations: str = "+", held_out: int = 0) -> None:
        if not 1 <= largest <= _LARGEST:
            raise ConfigInvalid(f"largest must be from 1 to {_LARGEST}, not {largest}")
        if not operations or len(set(operations)) < len(operations) or not set(operations) <= set(_OPERATIONS):
            raise ConfigInvalid(f"operations must be some of {''.join(_OPERATIONS)}, each once, not {operations!r}")
        numbers = range(largest + 1)
        tasks = [(left, operation, right) for operation in operations for left in numbers for right in numbers]
        if not 0 <= held_out < len(tasks):
            raise ConfigInvalid(
                f"held_out must be from 0 to {len(tasks) - 1}, not {held_out}: something has to be left"
            )
        self.name = f"arithmetic:largest={largest},operations={operations},held_out={held_out}"
        aside = set(random.Random(0).sample(range(len(tasks)), held_out))  # noqa: S311  # a choice, not a secret
        self._training = [task for number, task in enumerate(tasks) if number not in aside]
        self._evaluation = [tasks[number] for number in sorted(aside)] or self._training

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Arithmetic:
        """Parse the options behind ``arithmetic:``."""
        if unknown := sorted(options.keys() - {"largest", "operations", "held_out"}):
            raise ConfigInvalid(f"arithmetic has no option {unknown[0]!r}; it has largest, operations and held_out")
        numbers = {key: _whole(key, options[key]) for key in ("largest", "held_out") if key in options}
        return cls(**numbers, operations=options.get("operations", "+"))

    def __len__(self) -> int:
        return len(self._training)

    def problem(self, index: int) -> Problem:
        return _problem(*self._training[index])

    def reward(self, problem: Problem, completion: Completion) -> float:
        """Return 1 if the completion begins with the right number, 0.1 if with another number, else 0.

        Text after the number is ignored, so one token is enough to learn from.
        """
        found = _NUMBER.match(completion.text)
        if found is None:
            return 0.0
        return RIGHT if found[1] == problem.answer else A_NUMBER

    def evaluation(self) -> list[Problem]:
        return [_problem(*task) for task in self._evaluation]


def _problem(left: int, operation: str, right: int) -> Problem:
    text = f"{left}{operation}{right}"
    return Problem(problem_id=text, prompt=f"{text}=", answer=str(_OPERATIONS[operation](left, right)))


def _whole(key: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value):
        raise ConfigInvalid(f"{key} must be a whole number, not {value!r}")
    return int(value)
