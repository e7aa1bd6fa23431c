"""Kinds of values: how each kind is read from a flag, a variable or TOML, and how it is written.

A reader takes text or a TOML value, and the directory that relative paths start from. It raises ValueError with a
reason that completes "<source>: …" and never repeats a secret.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar, get_args
from urllib.parse import urlsplit

from chockstone.cli.output.formatting import (
    is_off,
    parse_best,
    parse_duration,
    parse_size,
    write_best,
    write_duration,
    write_size,
)
from chockstone.engine.ownership.api_keys import check_user
from chockstone.trackers.tracker import TRACKERS, TrackerKind
from chockstone.wire.redaction import redact_url

T = TypeVar("T")
BestRule = tuple[str, Literal["min", "max"], int]  # metric, mode, count

_MODEL_NAME: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*(:[\w.-]+)?", re.ASCII)
_HUB_NAME: Final = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}", re.ASCII)
_KEY: Final = re.compile(r"tml-[!-+\--~]{4,}")  # visible ASCII but the comma, which separates keys
_HOST_NAME: Final = re.compile(r"\w[\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ValueKind(Generic[T]):
    metavar: str  # placeholder in the help
    read: Callable[[object, Path], T]
    write: Callable[[T], str] = str  # text that ``read`` reads back; secrets are hidden
    flag_type: Any = str  # Any: a type form, such as a Literal; list[str] makes a repeatable flag

    @property
    def is_repeatable(self) -> bool:
        return bool(self.flag_type == list[str])

    @property
    def is_switch(self) -> bool:
        return self.flag_type is bool


@dataclass(frozen=True, slots=True)
class ModelSetting:
    name: str  # what clients ask for
    directory: Path
    may_be_on_hub: bool = False  # the name is one of the Hugging Face hub, and no directory was given with it

    @property
    def is_on_hub(self) -> bool:
        """Whether to look for the model in the Hugging Face cache and on the hub.

        Where the directory ORGANIZATION exists, ORGANIZATION/NAME is a path: a missing disk is not replaced by a hub.
        """
        return self.may_be_on_hub and not self.directory.parent.is_dir()


def whole_number(least: int, most: int) -> ValueKind[int]:
    def read(value: object, _base: Path) -> int:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"\d+(_\d+)*", value, re.ASCII) else value
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise ValueError(f"{value!r} is not a whole number from {least} to {most}")
        return number

    return ValueKind("N", read, flag_type=int)


def number_or_auto(least: int, most: int) -> ValueKind[int]:
    """``auto`` means 0."""
    number = whole_number(least, most)

    def read(value: object, base: Path) -> int:
        if value == "auto":
            return 0
        try:
            return number.read(value, base)
        except ValueError as error:
            raise ValueError(f"{error}, nor auto") from None

    return ValueKind("N|auto", read, lambda value: str(value or "auto"))


def ratio() -> ValueKind[float]:
    """From 0 to 1."""

    def read(value: object, _base: Path) -> float:
        try:
            number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
        except ValueError:
            number = -1.0
        if not 0 <= number <= 1:
            raise ValueError(f"{value!r} is not a number from 0 to 1")
        return number

    return ValueKind("RATIO", read, lambda number: f"{number:g}")


def positive_number() -> ValueKind[float]:
    def read(value: object, _base: Path) -> float:
        try:
            number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
        except (ValueError, OverflowError):
            number = 0.0
        if not 0 < number < math.inf:
            raise ValueError(f"{value!r} is not a number above 0")
        return number

    return ValueKind("NUMBER", read, lambda number: f"{number:g}")


def choice(literal: Any) -> ValueKind[Any]:  # Any: a Literal is no type that mypy could take here
    choices = get_args(literal)

    def read(value: object, _base: Path) -> object:
        if value not in choices:
            raise ValueError(f"{value!r} is none of {', '.join(choices)}")
        return value

    return ValueKind("|".join(choices), read, flag_type=literal)


def _read_switch(value: object, _base: Path) -> bool:
    known = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}
    found = value if isinstance(value, bool) else known.get(str(value).strip().lower())
    if found is None:
        raise ValueError(f"{value!r} is neither on nor off")
    return found


def optional(kind: ValueKind[T]) -> ValueKind[T | None]:
    """``off`` and ``none`` mean None."""

    def read(value: object, base: Path) -> T | None:
        return None if isinstance(value, str) and is_off(value) else kind.read(value, base)

    def write(value: T | None) -> str:
        return "off" if value is None else kind.write(value)

    return ValueKind(kind.metavar, read, write, flag_type=str if kind.flag_type is int else kind.flag_type)


def size(*, least: int) -> ValueKind[int]:
    """In bytes. Where ``least`` is 0, ``off`` means 0."""

    def read(value: object, _base: Path) -> int:
        if isinstance(value, str) and is_off(value) and not least:
            return 0
        size_bytes = value if isinstance(value, int) and not isinstance(value, bool) else parse_size(_text(value))
        if size_bytes < least:
            raise ValueError(f"{value!r} is too small; write a size such as 500MB or 50GiB, or off for no limit")
        return size_bytes

    return ValueKind("SIZE", read, lambda size_bytes: write_size(size_bytes) if size_bytes else "off")


def duration(*, may_be_off: bool = False) -> ValueKind[float]:
    """In seconds. ``off`` means 0."""

    def read(value: object, _base: Path) -> float:
        if may_be_off and (value in (0, "0", "0s") or (isinstance(value, str) and is_off(value))):
            return 0.0
        return parse_duration(str(value) if isinstance(value, int) else _text(value))

    return ValueKind("TIME", read, lambda seconds: write_duration(seconds) if seconds else "off")


def _read_models(value: object, base: Path) -> tuple[ModelSetting, ...]:
    """From NAME, DIRECTORY and NAME=DIRECTORY, or a table of directories by name."""
    if isinstance(value, Mapping):
        models = [ModelSetting(_model_name(name), _path(directory, base)) for name, directory in value.items()]
    else:
        models = [_read_model(text, base) for text in _texts(value)]
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the model {name!r} is given twice; a name stands for one directory")
    return tuple(models)


def _read_model(text: str, base: Path) -> ModelSetting:
    name, has_directory, directory = text.partition("=")
    if name.startswith((".", "/", "~")) or name.endswith("/"):  # a path, which may contain "="
        path = _path(text, base)
        return ModelSetting(_model_name(path.name), path)
    if has_directory:
        return ModelSetting(_model_name(name), _path(directory, base))
    return ModelSetting(_model_name(text), _path(text, base), may_be_on_hub=_HUB_NAME.fullmatch(text) is not None)


def _model_name(name: str) -> str:
    if not _MODEL_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be a model's name: use letters, digits and . _ - / as in Qwen/Qwen3-8B. "
            f"NAME=DIRECTORY gives a directory another name."
        )
    return name


def _write_models(models: tuple[ModelSetting, ...]) -> str:
    texts = [model.name if model.is_on_hub else f"{model.name}={model.directory}" for model in models]
    return ", ".join(texts) or "none"


def _read_keys(value: object, _base: Path) -> Mapping[str, str]:
    """From USER=tml-… texts or a table of keys by user."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        pairs = [_split_key(text, number) for number, text in enumerate(_texts(value), 1)]
    keys: dict[str, str] = {}
    for user, key in pairs:
        check_user(user)
        if user in keys:
            raise ValueError(f"the user {user!r} is given twice; a user has one key")
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ValueError(
                f"the key of {user!r} cannot be used: a key starts with tml- and has at least 8 characters, "
                f"none of them a space or a comma. Make one with: echo tml-$(openssl rand -hex 16)"
            )
        if key in keys.values():
            raise ValueError(f"the key of {user!r} is also the key of another user; each user needs a key of their own")
        keys[user] = key
    return keys


def _split_key(text: str, number: int) -> tuple[str, str]:
    user, separator, key = text.partition("=")
    if not separator:
        raise ValueError(f"number {number} is not of the form USER=tml-…")  # the text may be the key itself
    return user, key


def _write_keys(keys: Mapping[str, str]) -> str:
    return ", ".join(f"{user}=tml-***" for user in keys) or "none"  # users are no secret


def _read_users(value: object, _base: Path) -> frozenset[str]:
    users = _texts(value)
    for user in users:
        check_user(user)
    return frozenset(users)


def _read_host(value: object, _base: Path) -> str:
    host = _text(value).removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _HOST_NAME.fullmatch(host):
            raise ValueError(
                f"{host!r} is not an address to listen on: write one such as 127.0.0.1, ::1 or localhost, "
                f"without http:// and port"
            ) from None
    return host


def _read_server_url(value: object, _base: Path) -> str:
    url = _text(value).rstrip("/")
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError("this URL is printed and must not hold a password; leave out everything up to the @")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{url!r} is not the URL of a server; write one such as https://models.example.com")
    return url


def _read_database(value: object, base: Path) -> str:
    url = _text(value)
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("sqlite", "postgres", "postgresql"):
        # the URL is not repeated, as it may hold a password
        raise ValueError("a database is sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE")
    return f"sqlite:///{_path(rest.removeprefix('/'), base)}" if scheme == "sqlite" else url


def _read_store(value: object, base: Path) -> str:
    url = _text(value)
    scheme, separator, _ = url.partition("://")
    if not separator:
        return str(_path(url, base))
    if scheme not in ("file", "s3", "gs", "az"):
        raise ValueError(f"{url!r} is not a store: use a directory, file://, s3://, gs:// or az://")
    if scheme != "file":
        _check_object_store(url)
    return url


def _check_object_store(url: str) -> None:
    from chockstone.checkpoints.errors import InvalidName  # late: nothing else here needs numpy
    from chockstone.checkpoints.stores.object_store import split_url

    try:
        split_url(url)
    except InvalidName as error:
        raise ValueError(str(error)) from None


def _read_vllm_urls(value: object, _base: Path) -> tuple[str, ...]:
    return tuple(map(_vllm_url, _texts(value)))


def _vllm_url(text: str) -> str:
    url = text.rstrip("/")
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:  # the URL is not repeated, as it may hold a secret
        raise ValueError("the URL of a vLLM server holds no user or password; put its key into VLLM_API_KEY")
    is_reachable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0  # a bad port raises
    if not is_reachable or parts.query or parts.fragment or parts.path.endswith("/v1"):
        raise ValueError(f"{url!r} is not the URL of a vLLM server; write one such as http://gpu-1:8000, without /v1")
    return url


def _read_trackers(value: object, _base: Path) -> tuple[TrackerKind, ...]:
    """From a list of names, each of which may hold several with commas between; or from ``none``."""
    names = [_text(part) for text in _texts(value) for part in text.split(",")]
    if len(names) == 1 and is_off(names[0]):
        return ()
    found: list[TrackerKind] = []
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"{name!r} is none of {', '.join(TRACKERS)}")
        if name not in found:
            found.append(name)
    return tuple(found)


def _path(value: object, base: Path) -> Path:
    return Path(os.path.abspath(base / Path(_text(value)).expanduser()))


def _texts(value: object) -> list[str]:
    """From a list, or from text with commas between."""
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ValueError("expected a list of words")
    return [_text(text) for text in texts]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    if not value.strip():
        raise ValueError("the value is empty")
    return value.strip()


SWITCH: Final = ValueKind("on|off", _read_switch, lambda value: "on" if value else "off", flag_type=bool)
TEXT: Final = ValueKind("TEXT", lambda value, _: _text(value))
DIRECTORY: Final = ValueKind("DIRECTORY", _path)
HOST: Final = ValueKind("ADDRESS", _read_host)
SERVER_URL: Final = ValueKind("URL", _read_server_url)
DATABASE_URL: Final = ValueKind("URL", _read_database, redact_url)
STORE: Final = ValueKind("URL", _read_store)
BEST: Final[ValueKind[BestRule]] = ValueKind(
    "METRIC[:min|max[:COUNT]]", lambda value, _: parse_best(_text(value)), lambda best: write_best(*best)
)
MODELS: Final = ValueKind("NAME[=DIRECTORY]", _read_models, _write_models, list[str])
KEYS: Final = ValueKind("USER=tml-…", _read_keys, _write_keys, list[str])
USERS: Final = ValueKind("USER", _read_users, lambda users: ", ".join(sorted(users)) or "none", list[str])
TRACKER_KINDS: Final = ValueKind(
    "|".join(TRACKERS), _read_trackers, lambda names: ", ".join(names) or "none", list[str]
)
VLLM_URLS: Final = ValueKind("URL", _read_vllm_urls, lambda urls: ", ".join(urls) or "none", list[str])
