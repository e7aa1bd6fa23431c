"""A group of commands whose modules are imported when they are used.

``chockstone --help`` imports none of them, and a command imports its own module only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperGroup

from chockstone.cli.output.exit_codes import EXIT_CODES


class LazyCommand(NamedTuple):
    """Where a command is, and its line in the help of its group: the first line of the command's own help."""

    module: str  # below chockstone.cli.commands
    help: str
    attribute: str = "commands"  # a typer.Typer, or a function that is a command


class LazyCommands(Mapping[str, Any]):  # Any: classes of click, which typer carries inside
    """Commands by name, each imported and built when it is asked for."""

    def __init__(self, commands: Mapping[str, LazyCommand]) -> None:
        self._commands = commands

    def __getitem__(self, name: str) -> Any:
        command = self._commands[name]
        found = getattr(import_module(f"chockstone.cli.commands.{command.module}"), command.attribute)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
            found.command(epilog=EXIT_CODES)(function)
        built = typer.main.get_command(found)
        built.name = name
        return built

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)

    def __contains__(self, name: object) -> bool:
        return name in self._commands


class LazyGroup(TyperGroup):
    """A subclass names its commands in the order of the help, under the headings of the help."""

    PANELS: ClassVar[Mapping[str, Mapping[str, LazyCommand]]]

    def __init__(self, **attributes: Any) -> None:  # Any: as typer has them
        super().__init__(**attributes)
        self.commands = LazyCommands(self.lines())  # type: ignore[assignment]  # nothing is added to it

    @classmethod
    def lines(cls) -> dict[str, LazyCommand]:
        """All commands by name."""
        return {name: command for panel in cls.PANELS.values() for name, command in panel.items()}

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(self.lines())

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        for title, panel in self.PANELS.items():
            with formatter.section(title):
                formatter.write_dl([(name, command.help) for name, command in panel.items()])
