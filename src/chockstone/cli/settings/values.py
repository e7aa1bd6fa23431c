"""Values: how each setting is read from a flag, an environment variable or a file.

A reader takes what its source holds, text or a value of TOML, and the directory that relative paths start
from. It raises ValueError with a reason that completes "<source>: …" and never repeats a key.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, get_args
from urllib.parse import urlsplit

from chockstone.cli.output.formatting import is_off, parse_best, parse_duration, parse_size
from chockstone.cli.settings.settings import (
    LIMITS,
    BackendKind,
    Device,
    DownloadsKind,
    Dtype,
    JournalMode,
    LogLevel,
    ModelSetting,
    OnJournalLoss,
    SamplerKind,
)

Reader = Callable[[object, Path], Any]  # Any: of each setting's own type

_MODEL_NAME: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*(:[\w.-]+)?", re.ASCII)
_USER: Final = re.compile(r"\w[\w.@+-]*", re.ASCII)
_KEY: Final = re.compile(r"tml-[!-+\--~]{4,}")  # visible ASCII but the comma, which stands between keys
_HOST_NAME: Final = re.compile(r"\w[\w.-]*", re.ASCII)


def read_models(value: object, base: Path) -> tuple[ModelSetting, ...]:
    """From NAME, DIRECTORY and NAME=DIRECTORY, or a table of directories by name."""
    if isinstance(value, Mapping):
        models = [ModelSetting(_model_name(name), _path(directory, base)) for name, directory in value.items()]
    else:
        models = [_read_model(word, base) for word in _words(value)]
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the model {name!r} is given twice; a name stands for one directory")
    return tuple(models)


def _read_model(word: str, base: Path) -> ModelSetting:
    name, has_directory, directory = word.partition("=")
    if _is_path(name):  # whatever else it holds
        path = _path(word, base)
        return ModelSetting(_model_name(path.name), path)
    if has_directory:
        return ModelSetting(_model_name(name), _path(directory, base))
    return ModelSetting(_model_name(word), _path(word, base))


def _is_path(word: str) -> bool:
    return word.startswith((".", "/", "~")) or word.endswith("/")


def _model_name(name: str) -> str:
    if not _MODEL_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be a model's name: use letters, digits and . _ - / as in Qwen/Qwen3-8B. "
            f"NAME=DIRECTORY gives a directory another name."
        )
    return name


def read_keys(value: object, _base: Path) -> Mapping[str, str]:
    """From USER=tml-… words or a table of keys by user."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        pairs = [_split_key(word, number) for number, word in enumerate(_words(value), 1)]
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
            raise ValueError(f"the key of {user!r} is another user's, too; a key tells who is asking")
        keys[user] = key
    return keys


def check_user(user: str) -> None:
    if not _USER.fullmatch(user):
        raise ValueError("a user's name has letters, digits and . _ @ + - only, as in alice=tml-…")


def _split_key(word: str, number: int) -> tuple[str, str]:
    user, separator, key = word.partition("=")
    if not separator:
        raise ValueError(f"number {number} is not of the form USER=tml-…")  # it may be the key itself
    return user, key


def read_host(value: object, _base: Path) -> str:
    host = _text(value).removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _HOST_NAME.fullmatch(host):
            raise ValueError(
                f"{host!r} is no address to listen on: write one such as 127.0.0.1, ::1 or localhost, "
                f"without http:// and port"
            ) from None
    return host


def read_data(value: object, base: Path) -> Path:
    return _path(value, base)


def _path(value: object, base: Path) -> Path:
    text = str(value) if isinstance(value, Path) else _text(value)
    return Path(os.path.abspath(base / Path(text).expanduser()))


def _words(value: object) -> list[str]:
    """From a list, or from text with commas between."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise ValueError("expected a list of words")
    return [_text(word) for word in words]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    if not value.strip():
        raise ValueError("it is empty")
    return value.strip()


def _one_of(*choices: str) -> Reader:
    def read(value: object, _base: Path) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} is none of {', '.join(choices)}")
        return str(value)

    return read


def _whole(least: int, most: int) -> Reader:
    def read(value: object, _base: Path) -> int:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"\d+(_\d+)*", value, re.ASCII) else value
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise ValueError(f"{value!r} is not a whole number from {least} to {most}")
        return number

    return read


def _optional(reader: Reader) -> Reader:
    """None, or the words ``off`` and ``none``, for no such rule."""

    def read(value: object, base: Path) -> Any:  # Any: of the setting's own type
        return None if value is None or (isinstance(value, str) and is_off(value)) else reader(value, base)

    return read


def _size(least: int) -> Reader:
    def read(value: object, _base: Path) -> int:
        if isinstance(value, str) and is_off(value) and not least:
            return 0
        size_bytes = value if isinstance(value, int) and not isinstance(value, bool) else parse_size(_text(value))
        if size_bytes < least:
            raise ValueError(f"{value!r} is too little; write a size such as 500MB or 50GiB, or off for no limit")
        return size_bytes

    return read


def _duration(*, may_be_zero: bool) -> Reader:
    def read(value: object, _base: Path) -> float:
        if may_be_zero and (value in (0, "0", "0s") or (isinstance(value, str) and is_off(value))):
            return 0.0
        if isinstance(value, float):  # a default
            return value
        return parse_duration(str(value) if isinstance(value, int) else _text(value))

    return read


def read_best(value: object, _base: Path) -> tuple[str, str, int]:
    return parse_best(_text(value))


def read_admins(value: object, _base: Path) -> frozenset[str]:
    if isinstance(value, frozenset):  # a default
        return value
    words = _words(value)
    for user in words:
        check_user(user)
    return frozenset(words)


def read_public_url(value: object, _base: Path) -> str:
    url = _text(value).rstrip("/")
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError("a password does not belong into this URL, which is shown; leave out all up to the @")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{url!r} is not how clients reach a server; write one such as https://models.example.com")
    return url


def read_database(value: object, base: Path) -> str:
    url = _text(value)
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("sqlite", "postgres", "postgresql"):
        # which may hold a password, and is therefore not repeated
        raise ValueError("a database is sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE")
    return f"sqlite:///{_path(rest.removeprefix('/'), base)}" if scheme == "sqlite" else url


def read_store(value: object, base: Path) -> str:
    url = _text(value)
    scheme, separator, _ = url.partition("://")
    if not separator:
        return str(_path(url, base))
    if scheme not in ("file", "s3", "gs", "az"):
        raise ValueError(f"{url!r} is no store: use a directory, file://, s3://, gs:// or az://")
    if scheme != "file":
        _check_object_store(url)
    return url


def read_vllm_urls(value: object, _base: Path) -> tuple[str, ...]:
    return () if value == () else tuple(map(_vllm_url, _words(value)))


def _vllm_url(word: str) -> str:
    url = word.rstrip("/")
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:  # which may be a secret, and is not repeated
        raise ValueError("the URL of a vLLM server holds no user or password; put its key into VLLM_API_KEY")
    is_reachable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0  # a bad port raises
    if not is_reachable or parts.query or parts.fragment or parts.path.endswith("/v1"):
        raise ValueError(f"{url!r} is not where a vLLM server is; write one such as http://gpu-1:8000, without /v1")
    return url


def _check_object_store(url: str) -> None:
    from chockstone.checkpoints.errors import InvalidName  # late: nothing else here needs numpy
    from chockstone.checkpoints.stores.object_store import split_url

    try:
        split_url(url)
    except InvalidName as error:
        raise ValueError(str(error)) from None


READERS: Final[Mapping[str, Reader]] = {
    "models": read_models,
    "host": read_host,
    "port": _whole(0, 65_535),
    "data": read_data,
    "device": _one_of(*get_args(Device)),
    "dtype": _one_of(*get_args(Dtype)),
    "threads": _whole(0, 4096),
    "log_level": _one_of(*get_args(LogLevel)),
    "keys": read_keys,
    **dict.fromkeys(LIMITS, _whole(1, 2**40)),
    "tokens_per_micro_batch": _whole(0, 2**40),  # 0: what suits the device
    "admins": read_admins,
    "public_url": _optional(read_public_url),
    "keep_last": _optional(_whole(1, 2**31)),
    "keep_every": _optional(_whole(1, 2**40)),
    "keep_best": _optional(read_best),
    "checkpoint_ttl": _optional(_duration(may_be_zero=False)),
    "user_quota": _optional(_size(1)),
    "run_quota": _optional(_size(1)),
    "disk_reserve": _size(0),
    "trash": _duration(may_be_zero=True),
    "sweep_interval": _duration(may_be_zero=False),
    "scrub_rate": _size(0),
    "scrub_every": _duration(may_be_zero=False),
    "journal": _one_of(*get_args(JournalMode)),
    "on_journal_loss": _one_of(*get_args(OnJournalLoss)),
    "recovery_steps": _whole(1, 2**31),
    "database": _optional(read_database),
    "store": _optional(read_store),
    "downloads": _one_of(*get_args(DownloadsKind)),
    "backend": _one_of(*get_args(BackendKind)),
    "workers": _whole(1, 4096),
    "min_workers": _optional(_whole(1, 4096)),
    "ray_address": _optional(lambda value, _: _text(value)),
    "sampler": _one_of(*get_args(SamplerKind)),
    "vllm_urls": read_vllm_urls,
    "vllm_adapters": _optional(_path),
    "vllm_loras": _whole(1, 2**20),
    "engine": _optional(read_public_url),
    **dict.fromkeys(("recovery_replay", "park_after", "forget_after"), _duration(may_be_zero=False)),
}
