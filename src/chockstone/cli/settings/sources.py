"""Sources: where settings come from. A flag wins over the environment, that over the file, that over a default.

One source gives the whole of a setting: ``--model`` on the command line replaces the models of the file
and adds none to them. Relative paths in a file start from the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from chockstone.cli.settings.settings import (
    DEFAULT,
    LIMITS,
    NAMES,
    SCALE,
    STORAGE,
    SURVIVAL,
    DeploymentSettings,
    LimitSettings,
    RecoverySettings,
    Settings,
    SettingsError,
    StorageSettings,
    default_of,
)
from chockstone.cli.settings.values import READERS

FILE_NAME: Final = "chockstone.toml"
PREFIX: Final = "CHOCKSTONE_"
_CONFIG: Final = f"{PREFIX}CONFIG"  # names the file, as --config does
_REPEATED: Final = {"models": "--model", "keys": "--key", "admins": "--admin", "vllm_urls": "--vllm-url"}


@dataclass(frozen=True, slots=True)
class SettingsLayer:
    """What one source says."""

    values: Mapping[str, object]
    base: Path  # where its relative paths start
    spell: Callable[[str], str]  # what to call the source of a setting


def load_settings(
    flags: Mapping[str, object],
    *,
    config: str | None = None,
    environment: Mapping[str, str],
    working_directory: Path,
) -> Settings:
    """The settings of all sources. Raises SettingsError for what is unknown or cannot be read.

    ``flags`` has a value by name for each that was given and None for others. ``config`` names the file;
    without, the environment may, and else ``chockstone.toml`` is read where it stands.
    """
    layers = (
        SettingsLayer(
            {name: value for name, value in flags.items() if value is not None}, working_directory, _spell_flag
        ),
        SettingsLayer(_from_environment(environment), working_directory, lambda name: f"environment {_variable(name)}"),
        _from_file(config or environment.get(_CONFIG), working_directory),
        SettingsLayer({name: default_of(name) for name in NAMES}, working_directory, lambda _: DEFAULT),
    )
    values: dict[str, Any] = {}  # Any: of each setting's own type
    sources: dict[str, str] = {}
    for name in NAMES:
        layer = next(layer for layer in layers if name in layer.values)
        sources[name] = layer.spell(name)
        try:
            values[name] = READERS[name](layer.values[name], layer.base)
        except ValueError as error:
            raise SettingsError(f"{sources[name]}: {error}") from None
    limits = LimitSettings(**{name: values.pop(name) for name in LIMITS})
    storage = StorageSettings(**{name: values.pop(name) for name in STORAGE})
    survival = RecoverySettings(**{name: values.pop(name) for name in SURVIVAL})
    scale = DeploymentSettings(**{name: values.pop(name) for name in SCALE})
    return Settings(**values, limits=limits, storage=storage, survival=survival, scale=scale, sources=sources)


def _spell_flag(name: str) -> str:
    return f"flag {_REPEATED.get(name) or '--' + name.replace('_', '-')}"


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An empty variable counts as not set, as containers cannot unset one."""
    names = {_variable(name): name for name in NAMES}
    for variable in environment:
        if variable.startswith(PREFIX) and variable not in names and variable != _CONFIG:
            word = variable.removeprefix(PREFIX).lower()
            suggestion = _suggest(word, [*NAMES, "config"], spell=_variable)
            raise SettingsError(f"the environment variable {variable!r} is no setting; {suggestion}")
    return {name: environment[variable] for variable, name in names.items() if environment.get(variable)}


def _from_file(config: str | None, working_directory: Path) -> SettingsLayer:
    path = working_directory / Path(config or FILE_NAME).expanduser()
    if config is None and not path.exists():
        return SettingsLayer({}, working_directory, str)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {str(path)!r}: {error.strerror or error}") from None
    except ValueError as error:
        raise SettingsError(f"the settings file {str(path)!r} is not TOML: {error}") from None
    for name in values:
        if name not in NAMES:
            raise SettingsError(f"the key {name!r} in {str(path)!r} is no setting; {_suggest(name, NAMES)}")
    return SettingsLayer(values, path.parent, lambda _: f"file {path}")


def _suggest(word: str, known: Sequence[str], *, spell: Callable[[str], str] = str) -> str:
    if nearest := get_close_matches(word, known, n=1):
        return f"did you mean {spell(nearest[0])!r}?"
    return f"there are {', '.join(map(spell, known))}"
