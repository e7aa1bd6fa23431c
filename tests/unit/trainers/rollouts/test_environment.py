from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chockstone.trainers.errors import ConfigInvalid
from chockstone.trainers.rollouts.arithmetic import Arithmetic
from chockstone.trainers.rollouts.environment import load_environment

OWN = """\
from chockstone.trainers.rollouts.environment import Problem

class Echo:
    name, stop = "echo", ()
    def __len__(self): return self.size
    def problem(self, index): return Problem(str(index), "say " + str(index), str(index))
    def reward(self, problem, completion): return float(completion.text == problem.answer)
    def evaluation(self): return ()
    size = 3

class Empty(Echo):
    size = 0

class Mute(Echo):
    reward = property()  # raises AttributeError: as good as not there

def fails(): raise KeyError("the file of prompts")
number = 3
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "echo_environments.py").write_text(OWN)
    (tmp_path / "needs_more.py").write_text("import echo_environments_that_are_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("echo_environments", None)


def test_arithmetic_is_there_by_its_name() -> None:
    environment = load_environment("arithmetic")

    assert isinstance(environment, Arithmetic)
    assert environment.name == Arithmetic().name


def test_options_follow_the_name() -> None:
    environment = load_environment("arithmetic:largest=5,operations=+*,held_out=7")

    assert environment.name == Arithmetic(largest=5, operations="+*", held_out=7).name


def test_a_name_loads_the_same_environment_again() -> None:
    environment = Arithmetic(largest=5, operations="-", held_out=2)

    assert load_environment(environment.name).name == environment.name


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "there is no environment ''; choose 'arithmetic'"),
        ("aritmetic", "there is no environment 'aritmetic'"),
        ("module:", "there is no environment 'module:'"),
        (":factory", "there is no environment ':factory'"),
        ("arithmetic:largest", "'largest' in 'arithmetic:largest' is not an option"),
        ("arithmetic:largest=", "largest must be a whole number, not ''"),
        ("arithmetic:largest=-4", "largest must be a whole number, not '-4'"),
        ("arithmetic:largest=4,largest=5", "write each once"),
        ("arithmetic:smallest=4", "no option 'smallest'; it has largest, operations and held_out"),
        ("not_installed.environments:make", "no module 'not_installed' for the environment .* on PYTHONPATH"),
        ("json.not_there:make", "no module 'json.not_there' for the environment"),
    ],
)
def test_a_spec_that_names_nothing_says_what_to_write(spec: str, said: str) -> None:
    with pytest.raises(ConfigInvalid, match=said):
        load_environment(spec)


@pytest.mark.usefixtures("own_module")
def test_ones_own_is_loaded_from_its_module() -> None:
    environment = load_environment("echo_environments:Echo")

    assert [environment.problem(index).prompt for index in range(len(environment))] == ["say 0", "say 1", "say 2"]


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("Ecco", "has no function or class 'Ecco'"),
        ("number", "has no function or class 'number'"),
        ("Mute", "made a Mute, which is no environment: it has no reward"),
        ("Empty", "has no problems to train on"),
    ],
)
def test_something_that_is_no_environment_is_refused(factory: str, said: str) -> None:
    with pytest.raises(ConfigInvalid, match=said):
        load_environment(f"echo_environments:{factory}")


@pytest.mark.usefixtures("own_module")
def test_what_a_factory_raises_is_raised_as_it_is() -> None:
    with pytest.raises(KeyError, match="the file of prompts"):
        load_environment("echo_environments:fails")


@pytest.mark.usefixtures("own_module")
def test_a_module_that_misses_another_says_which() -> None:
    with pytest.raises(ModuleNotFoundError, match="echo_environments_that_are_not_there"):
        load_environment("needs_more:make")
