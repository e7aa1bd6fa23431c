"""Fields: what is known of each setting of a model: its names, kind, default and description.

A model is a frozen dataclass whose fields are made by ``setting``. A field that is itself such a dataclass is a group;
the name of a setting does not contain the group, so that a setting can move between groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, Final, TypeVar

from chockstone.cli.settings.values import ValueKind

T = TypeVar("T")
M = TypeVar("M")
PREFIX: Final = "CHOCKSTONE_"
_DESCRIPTION: Final = "setting"


@dataclass(frozen=True, slots=True)
class _Description:
    kind: ValueKind[Any]  # Any: each setting has its own type
    help: str
    metavar: str
    default_text: str
    for_replicas: bool


@dataclass(frozen=True, slots=True)
class SettingField:
    """One setting. The flag, the variable and the TOML key are made from its name alone."""

    name: str  # the TOML key, too
    kind: ValueKind[Any]  # Any: each setting has its own type
    default: object
    default_text: str  # empty: a list that is empty unless something is given
    help: str
    metavar: str
    panel: str  # heading in the help
    for_replicas: bool  # whether an API replica uses it

    @property
    def flag(self) -> str:
        name = self.name.removesuffix("s") if self.kind.is_repeatable else self.name
        return f"--{name.replace('_', '-')}"

    @property
    def both_flags(self) -> str:
        """Of a switch: the flag that turns it on, and the one that turns it off."""
        return f"{self.flag}/--no-{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        return variable_of(self.name)


def variable_of(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def setting(
    kind: ValueKind[T],
    default: T,
    help: str,  # noqa: A002  # as typer calls it
    *,
    metavar: str | None = None,
    default_text: str | None = None,
    is_secret: bool = False,
    for_replicas: bool = False,
) -> T:
    """A field of a settings model.

    ``help`` is one line that starts with a verb or a noun and says the unit. ``default_text`` stands for a default that
    does not say by itself what it means. A secret does not show in the model's repr.
    """
    shown = default_text or ("" if kind.is_repeatable else kind.write(default))
    metadata = {_DESCRIPTION: _Description(kind, help, metavar or kind.metavar, shown, for_replicas)}
    if isinstance(default, dict):  # dataclasses refuse a mutable default
        return field(default_factory=lambda: type(default)(default), repr=not is_secret, metadata=metadata)
    return field(default=default, repr=not is_secret, metadata=metadata)


def list_fields(model: type[Any]) -> list[SettingField]:
    """The settings of a model in its order, those of its groups last. ``model`` has a TITLE."""
    own, grouped = [], []
    for each in fields(model):
        described = each.metadata.get(_DESCRIPTION)
        if described is not None:
            default = each.default_factory() if callable(each.default_factory) else each.default
            own.append(_field(each.name, described, default, panel=model.TITLE))
        elif is_dataclass(each.default):
            grouped += list_fields(type(each.default))
    return [*own, *grouped]


def _field(name: str, described: _Description, default: object, *, panel: str) -> SettingField:
    return SettingField(
        name=name,
        kind=described.kind,
        default=default,
        default_text=described.default_text,
        help=described.help,
        metavar=described.metavar,
        panel=panel,
        for_replicas=described.for_replicas,
    )


def value_of(settings: object, name: str) -> object:
    """The value of a setting, in whatever group it is. Raises KeyError for a name that no setting has."""
    for owner, each in _walk(settings):
        if each.name == name:
            value: object = getattr(owner, name)
            return value
    raise KeyError(name)


def _walk(settings: Any) -> Iterator[tuple[object, Field[Any]]]:  # Any: a dataclass of any type
    for each in fields(settings):
        if _DESCRIPTION in each.metadata:
            yield settings, each
        elif is_dataclass(each.default):
            yield from _walk(getattr(settings, each.name))


def build(model: type[M], values: Mapping[str, object], **others: object) -> M:
    """A model of the values of its settings. ``others`` are fields that are no settings."""
    given: dict[str, object] = dict(others)
    for each in fields(model):  # type: ignore[arg-type]  # a dataclass, which a TypeVar cannot say
        if _DESCRIPTION in each.metadata:
            given[each.name] = values[each.name]
        elif is_dataclass(each.default):
            given[each.name] = build(type(each.default), values)
    return model(**given)
