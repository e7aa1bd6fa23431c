"""Environments: where prompts come from, and what an answer to one is worth."""

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
    problem_id: str  # unique in its environment, the same in every process
    prompt: str | tuple[Message, ...]  # plain text as it is; messages through the tokenizer's chat template
    answer: Any = None  # for the reward; plain data


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    tokens: tuple[int, ...]
    is_truncated: bool  # it was not at its end when max_tokens were


class Environment(Protocol):
    @property
    def name(self) -> str:
        """Also says with which options: a run is resumed only where the name is the same."""

    @property
    def stop(self) -> Sequence[str]:
        """Texts that end an answer; (): the model's own end."""

    def __len__(self) -> int:
        """Problems to train on."""

    def problem(self, index: int) -> Problem:
        """Cheap and pure: same index, same problem, in every process."""

    def reward(self, problem: Problem, completion: Completion) -> float | Awaitable[float]:
        """Called in a thread unless it is a coroutine function."""

    def evaluation(self) -> Sequence[Problem]:
        """Held out, or the same; (): none."""


def load_environment(spec: str) -> Environment:
    """``arithmetic``, ``arithmetic:largest=9,operations=+-``, or your own: ``package.module:factory``.

    A factory is called without arguments; a class will do. What it raises is raised as it is. ConfigInvalid for a
    spec that names nothing, or something that is no environment.
    """
    from chockstone.trainers.rollouts.arithmetic import Arithmetic  # it stands on this module

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
            raise  # it is there; something that it imports is not
        raise ConfigInvalid(
            f"no module {error.name!r} for the environment {spec!r}; install it, or put its directory on PYTHONPATH"
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise ConfigInvalid(f"the module {module_name!r} has no function or class {factory_name!r}, named by {spec!r}")
    return factory
