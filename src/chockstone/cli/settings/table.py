"""The settings as a table: name, value and source of each, fit to be pasted into a bug report."""

from __future__ import annotations

from collections.abc import Sequence

from chockstone.cli.output.formatting import printable
from chockstone.cli.output.terminal import print_table
from chockstone.cli.settings.fields import list_fields
from chockstone.cli.settings.settings import Settings


def print_settings(settings: Settings, chosen: Sequence[tuple[str, str, str]] = ()) -> None:
    """``chosen``: name, value and reason of what is no setting but is decided for this machine."""
    rows = [
        (field.name, field.kind.write(settings.value_of(field.name)), settings.source_of(field.name))
        for field in list_fields(type(settings))
    ]
    print_table(("SETTING", "VALUE", "SOURCE"), [tuple(map(printable, row)) for row in (*rows, *chosen)])
