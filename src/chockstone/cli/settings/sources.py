"""Sources: where settings come from. A flag overrides the environment, which overrides the file, then the default.

One source gives the whole of a setting: ``--model`` on the command line replaces the models of the file and adds none
to them. Relative paths in a file start from the file's directory.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final, TypeVar

from chockstone.cli.settings.fields import PREFIX, SettingField, build, list_fields, variable_of
from chockstone.cli.settings.settings import DEFAULT, Settings, SettingsError

S = TypeVar("S", bound=Settings)
FILE_NAME: Final = "chockstone.toml"
_CONFIG: Final = "config"  # its variable names the file, as --config does


@dataclass(frozen=True, slots=True)
class SettingsLayer:
    """What one source says."""

    values: Mapping[str, object]
    base: Path  # directory that its relative paths start from
    describe: Callable[[SettingField], str]  # the source of a setting, for people


def load_settings(
    flags: Mapping[str, object],
    *,
    config: str | None = None,
    environment: Mapping[str, str],
    working_directory: Path,
) -> Settings:
    """The settings of all sources. Raises SettingsError for what is unknown or cannot be read.

    ``flags`` has a value by name for each flag that was given, and None for others. ``config`` names the file; without
    it, the environment may name one, else ``chockstone.toml`` in the working directory is read if it exists.
    """
    return load_model(Settings, flags, config=config, environment=environment, working_directory=working_directory)


def load_model(
    model: type[S],
    flags: Mapping[str, object],
    *,
    config: str | None,
    environment: Mapping[str, str],
    working_directory: Path,
) -> S:
    fields = list_fields(model)
    given = {name: value for name, value in flags.items() if value is not None}
    layers = (
        SettingsLayer(given, working_directory, lambda field: f"flag {field.flag}"),
        SettingsLayer(
            _from_environment(environment, fields), working_directory, lambda field: f"environment {field.variable}"
        ),
        _from_file(config or environment.get(variable_of(_CONFIG)), working_directory, fields),
    )
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    mistakes: list[str] = []
    for field in fields:
        layer = next((layer for layer in layers if field.name in layer.values), None)
        if layer is None:
            sources[field.name] = DEFAULT
            is_path = isinstance(field.default, Path)
            values[field.name] = working_directory / field.default if is_path else field.default  # type: ignore[operator]
            continue
        sources[field.name] = layer.describe(field)
        try:
            values[field.name] = field.kind.read(layer.values[field.name], layer.base)
        except ValueError as error:
            mistakes.append(f"{sources[field.name]}: {error}")
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    return build(model, values, sources=sources)


def _from_environment(environment: Mapping[str, str], fields: Sequence[SettingField]) -> dict[str, str]:
    """An empty variable counts as not set, as containers cannot unset one."""
    names = {field.variable: field.name for field in fields}
    for variable in environment:
        if variable.startswith(PREFIX) and variable not in names and variable != variable_of(_CONFIG):
            name = variable.removeprefix(PREFIX).lower()
            suggestion = _suggest(name, [*names.values(), _CONFIG], write=variable_of)
            raise SettingsError(f"the environment variable {variable!r} is not a setting; {suggestion}")
    return {name: environment[variable] for variable, name in names.items() if environment.get(variable)}


def _from_file(config: str | None, working_directory: Path, fields: Sequence[SettingField]) -> SettingsLayer:
    path = working_directory / Path(config or FILE_NAME).expanduser()
    if config is None and not path.exists():
        return SettingsLayer({}, working_directory, str)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {str(path)!r}: {error.strerror or error}") from None
    except ValueError as error:
        raise SettingsError(f"the settings file {str(path)!r} is not TOML: {error}") from None
    names = [field.name for field in fields]
    for name in values:
        if name not in names:
            raise SettingsError(f"the key {name!r} in {str(path)!r} is not a setting; {_suggest(name, names)}")
    return SettingsLayer(values, path.parent, lambda _: f"file {path}")


def _suggest(name: str, known: Sequence[str], *, write: Callable[[str], str] = str) -> str:
    if nearest := get_close_matches(name, known, n=1):
        return f"did you mean {write(nearest[0])!r}?"
    return f"settings: {', '.join(map(write, known))}"
