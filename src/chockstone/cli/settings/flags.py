"""Flags: a command-line option for each setting of a model, under the heading of its group."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, get_args

import typer
from typer.core import TyperCommand

from chockstone.cli.settings.fields import SettingField, list_fields

_FLAGS: Final = "flags"  # the parameter that gets them all


class GroupedCommand(TyperCommand):
    """A command whose help has a section for each group of options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # Any: classes of click, which typer carries inside
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = getattr(parameter, "rich_help_panel", None) or "Options"
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def with_flags(command: Callable[..., None], model: type) -> Callable[..., None]:
    """``command`` with an option for each setting of ``model`` in the place of its parameter ``flags``.

    ``flags`` are values by the names of settings, None for a flag that was not given.
    """
    settings = list_fields(model)
    names = [each.name for each in settings]
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        parameters += map(_parameter, settings) if parameter.name == _FLAGS else [parameter]

    @wraps(command)
    def run(**given: Any) -> None:  # Any: each option has its own type
        flags = {name: given.pop(name) for name in names}
        command(flags={name: None if value == [] else value for name, value in flags.items()}, **given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # where typer looks
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(setting: SettingField) -> inspect.Parameter:
    is_choice = bool(get_args(setting.kind.flag_type)) and not setting.kind.is_repeatable
    option = typer.Option(
        None,
        setting.both_flags if setting.kind.is_switch else setting.flag,
        metavar=None if is_choice or setting.kind.is_switch else setting.metavar,  # typer shows the choices
        help=f"{setting.help}  [default: {setting.default_text}]" if setting.default_text else setting.help,
        show_default=False,
        rich_help_panel=setting.panel,
    )
    annotation = setting.kind.flag_type | None
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)
