"""Checks: whether a server can start with these settings, asked before anything is started."""

from __future__ import annotations

import ipaddress

from chockstone.cli.model_directory import read_config
from chockstone.cli.settings import ServedModel, Settings, SettingsError
from chockstone.cli.words import write_duration

_MAKE_ONE = "chockstone model make ./tiny && chockstone serve --model tiny=./tiny"


def check_settings(settings: Settings) -> None:
    """Look at what the settings name. Raises SettingsError, saying what to do; changes nothing."""
    if not settings.models:
        raise SettingsError(f"there is no model to serve. Name one with --model, or try a made one: {_MAKE_ONE}")
    for model in settings.models:
        _check_model(model)
    if not is_loopback(settings.host) and not settings.keys and not stored_users(settings):
        raise SettingsError(
            f"the host {settings.host!r} can be reached from other machines, and no keys are configured. Give each "
            f"user one with `chockstone keys create USER`, or with --key USER=tml-…, CHOCKSTONE_KEYS or a [keys] table "
            f"in chockstone.toml; or listen on 127.0.0.1"
        )
    survival = settings.survival
    if survival.forget_after < survival.park_after:
        raise SettingsError(
            f"sessions would be forgotten after {write_duration(survival.forget_after)} of silence, before their runs "
            f"are parked after {write_duration(survival.park_after)}; raise --forget-after or lower --park-after"
        )
    if settings.data.exists() and not settings.data.is_dir():
        raise SettingsError(f"the data directory {str(settings.data)!r} is a file; choose another with --data")


def stored_users(settings: Settings) -> list[str]:
    """Who has a key in the catalog."""
    from chockstone.cli.key_ring import CatalogOutOfReach, users_with_keys  # late: a database takes long to import

    try:
        return users_with_keys(settings.data)
    except CatalogOutOfReach as error:
        raise SettingsError(f"the keys in the data directory cannot be read: {error}") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. Of names, only ``localhost`` is taken on trust."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _check_model(model: ServedModel) -> None:
    try:
        read_config(model.directory)
    except ValueError as error:
        raise SettingsError(
            f"cannot serve the model {model.name!r}: {error}. Models are read from disk and never downloaded; "
            f"say where this one is with --model {model.name}=DIRECTORY, or try a made one: {_MAKE_ONE}"
        ) from None
