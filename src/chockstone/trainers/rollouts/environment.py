"""Environments: problems with prompts, and the reward of an answer."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from chockstone.trainers.errors import ConfigInvalid

Message = dict[str, str]  # role, content

_MEMBERS: Final = ("name", "stop", "__len__", "problem", "reward", "evaluation")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem to sample answers for."""

    problem_id: str  # unique in its environment, the same in every process
    prompt: str | tuple[Message, ...]  # plain text as it is; messages through the tokenizer's chat template
    answer: Any = None  # for the reward; plain data


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled answer."""

    text: str
    tokens: tuple[int, ...]
    is_truncated: bool  # it reached max_tokens


class Environment(Protocol):
    """Problems and their rewards: implement this protocol to train on your own task."""

    @property
    def name(self) -> str:
        """Name including the options. A trainer resumes a run only if the name is the same."""

    @property
    def stop(self) -> Sequence[str]:
        """Texts that end an answer; (): only the model's end-of-sequence token does."""

    def __len__(self) -> int:
        """Number of problems to train on."""

    def problem(self, index: int) -> Problem:
        """Return a problem by its index. Cheap and pure: the same index gives the same problem in every process."""

    def reward(self, problem: Problem, completion: Completion) -> float | Awaitable[float]:
        """Return the reward of an answer, a finite number. Called in a thread unless it is a coroutine function."""

    def evaluation(self) -> Sequence[Problem]:
        """Problems to evaluate with, held out or not; (): no evaluation."""


def load_environment(spec: str) -> Environment:
    """Make the environment of ``arithmetic``, ``arithmetic:largest=9,operations=+-`` or ``package.module:factory``.

    A factory (a function or a class) is called without arguments; its errors are raised unchanged. Raises
    ConfigInvalid if the spec names nothing, or something that is not an environment.
    """
    from chockstone.trainers.rollouts.arithmetic import Arithmetic  # which imports this module

    name, _, rest = spec.partition(":")
    if name == "arithmetic":
        return Arithmetic.from_options(_parse_options(spec, rest))
    if not name or not rest:
        raise ConfigInvalid(
            f"there is no environment {spec!r}; choose 'arithmetic', or name your own as 'package.module:factory'"
        )
    environment = _import_factory(spec, name, rest)()
    if missing := [member for member in _MEMBERS if not hasattr(environment, member)]:
        raise ConfigInvalid(
            f"{spec!r} made a {type(environment).__name__}, which is no environment: it has no {', '.join(missing)}"
        )
    if len(environment) == 0:
        raise ConfigInvalid(f"the environment {spec!r} has no problems to train on")
    return cast("Environment", environment)


def _parse_options(spec: str, text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if not key or not equals or key in options:
            raise ConfigInvalid(f"{part!r} in {spec!r} is not an option; write each once, as 'largest=9,operations=+-'")
        options[key] = value
    return options


def _import_factory(spec: str, module_name: str, factory_name: str) -> Any:  # Any: whatever is there
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists; a module that it imports does not
        raise ConfigInvalid(
            f"no module {error.name!r} for the environment {spec!r}; install it, or put its directory on PYTHONPATH"
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise ConfigInvalid(f"the module {module_name!r} has no function or class {factory_name!r}, named by {spec!r}")
    return factory
