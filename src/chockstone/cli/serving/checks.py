"""Checks whether a server can start with the settings, before anything is started."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Final

from chockstone.cli.models.directory import read_config
from chockstone.cli.output.formatting import write_duration
from chockstone.cli.settings.settings import FIELDS, DeploymentSettings, Settings, SettingsError
from chockstone.cli.settings.values import ModelSetting
from chockstone.extras import ExtraMissing, require

_DATABASE_SECONDS: Final = 60.0  # for a database server that starts when this one does
_MAKE_ONE = "chockstone model make ./tiny && chockstone serve --model tiny=./tiny"


def check_settings(settings: Settings) -> None:
    """Look at what the settings name. Raises SettingsError, saying what to do; changes nothing."""
    _check_database(settings.deployment)
    if settings.traces.otlp_endpoint is not None:
        _require("otel", "--otlp-endpoint", instead="leave --otlp-endpoint out")
    if settings.deployment.engine is not None:
        _check_replica(settings)
        return
    if not settings.models:
        raise SettingsError(f"no model to serve. Name one with --model, or try a small random one: {_MAKE_ONE}")
    for model in settings.models:
        _check_model(model)
    _check_device(settings)
    _check_keys(settings)
    _check_store(settings)
    _check_ray(settings.deployment)
    _check_vllm(settings.deployment)
    _check_replicas(settings.deployment)
    for tracker in settings.track:
        _require(tracker, f"--track {tracker}", instead=f"leave {tracker} out of --track")
    recovery = settings.recovery
    if recovery.session_timeout < recovery.park_after:
        raise SettingsError(
            f"sessions would end after {write_duration(recovery.session_timeout)} without client activity, before "
            f"their runs are parked after {write_duration(recovery.park_after)}; raise --session-timeout or lower "
            "--park-after"
        )
    if settings.data.exists() and not settings.data.is_dir():
        raise SettingsError(f"the data directory {str(settings.data)!r} is a file; choose another with --data")


def _require(extra: str, what: str, *, instead: str) -> None:
    try:
        require(extra, what)
    except ExtraMissing as error:
        raise SettingsError(f"{error}; or {instead}") from None


def _check_database(deployment: DeploymentSettings) -> None:
    if deployment.database is not None and not deployment.database.startswith("sqlite:"):
        _require("postgres", "PostgreSQL", instead="leave --database out")


def _check_replica(settings: Settings) -> None:
    """A file or an environment may be shared with the engine's server; a flag is meant for this process."""
    if settings.deployment.database is None:
        raise SettingsError(
            "an API replica (--engine) reads the catalog of its server; name it with --database, the same for both"
        )
    for field in FIELDS:
        if settings.source_of(field.name).startswith("flag") and not field.for_replicas:
            raise SettingsError(
                f"{settings.source_of(field.name)}: an API replica (--engine) does not use this setting; "
                f"give it to the server at {settings.deployment.engine}"
            )
    _require("replica", "an API replica (--engine)", instead="leave --engine out")
    _check_keys(settings)


def _check_device(settings: Settings) -> None:
    """Devices of Ray workers may be on other machines: each worker looks at its own."""
    if settings.device != "cuda" or settings.deployment.backend == "ray":
        return
    from chockstone.backends.supervision.cuda import why_no_cuda

    if (reason := why_no_cuda()) is not None:
        raise SettingsError(
            f"{settings.source_of('device')}: models cannot be on CUDA here: {reason}. Choose --device cpu, or "
            "--device auto, which uses CUDA where it can; or install NVIDIA's driver and a build of torch for CUDA"
        )


def _check_keys(settings: Settings) -> None:
    is_local = is_loopback(settings.host)
    if (is_local and settings.public_url is None) or settings.keys or _stored_users(settings) != []:
        return
    reached = (
        f"clients on other machines reach the server at {settings.public_url!r} (--public-url)"
        if is_local
        else f"the host {settings.host!r} can be reached from other machines"
    )
    raise SettingsError(
        f"{reached}, and no keys are configured. Give each user one with `chockstone keys create USER`, or with "
        "--key USER=tml-…, CHOCKSTONE_KEYS or a [keys] table in chockstone.toml; or "
        f"{'leave --public-url out' if is_local else 'listen on 127.0.0.1'}"
    )


def _check_store(settings: Settings) -> None:
    """Whether a bucket is there and ours is asked when the server starts, as it takes requests."""
    store = settings.deployment.store
    if store is None:
        return
    if (scheme := store.partition("://")[0]) in ("s3", "gs", "az"):
        _require(scheme, f"a store {scheme}://", instead="leave --store out")
    if "://" in store and not store.startswith("file://"):
        return
    from chockstone.checkpoints.errors import InvalidName  # late: most servers have no need of it yet
    from chockstone.checkpoints.stores.store import file_path

    try:
        place = Path(file_path(store) if "://" in store else store)
    except InvalidName as error:
        raise SettingsError(str(error)) from None
    if place.exists() and not place.is_dir():
        raise SettingsError(f"the store {str(place)!r} is a file; name a directory with --store")
    if place.resolve() == settings.data.resolve():
        raise SettingsError(f"the store cannot be the data directory {str(place)!r} itself; name one in it, or another")


def _check_ray(deployment: DeploymentSettings) -> None:
    if deployment.backend != "ray":
        for flag, value, default in (
            ("--workers", deployment.workers, 1),
            ("--min-workers", deployment.min_workers, None),
            ("--ray-address", deployment.ray_address, None),
        ):
            if value != default:
                raise SettingsError(f"{flag} is for workers on Ray; add --backend ray, or leave it out")
        return
    if deployment.min_workers is not None and deployment.min_workers > deployment.workers:
        raise SettingsError(
            f"--min-workers {deployment.min_workers} is more than --workers {deployment.workers}; lower --min-workers, "
            "or raise --workers"
        )
    address = deployment.ray_address
    if address is not None and not re.fullmatch(r"auto|[^/]+:\d+", address):
        raise SettingsError(
            f"a Ray cluster is joined as one of its nodes: --ray-address is auto, or HOST:PORT of its head, and not "
            f"{address!r}"
        )
    _require("ray", "--backend ray", instead="leave --backend out")


def _check_vllm(deployment: DeploymentSettings) -> None:
    if deployment.sampler != "vllm":
        given = {"--vllm-url": deployment.vllm_urls, "--vllm-adapters": deployment.vllm_adapters}
        for flag, value in given.items():
            if value:
                raise SettingsError(f"{flag} is for samples from vLLM; add --sampler vllm, or leave it out")
        return
    if not deployment.vllm_urls:
        raise SettingsError("--sampler vllm needs a vLLM server: name each one with --vllm-url")
    if len(set(deployment.vllm_urls)) < len(deployment.vllm_urls):
        raise SettingsError("--vllm-url names the same server twice; name each of them once")
    _require("vllm", "--sampler vllm", instead="leave --sampler out")


def _check_replicas(deployment: DeploymentSettings) -> None:
    if deployment.replicas == 1:
        return
    if deployment.backend == "ray" and deployment.replicas == 0:
        raise SettingsError("--replicas auto counts the GPUs of this machine; on Ray give a number of worker groups")
    if deployment.backend == "ray" and deployment.ray_address is None:
        raise SettingsError("--replicas on Ray needs a cluster that all worker groups join; name it with --ray-address")
    if deployment.sampler == "vllm":
        raise SettingsError("--replicas does not work with vLLM servers yet; leave it or --sampler vllm out")


def _stored_users(settings: Settings) -> list[str] | None:
    """Who has a key in the catalog. None: only a server can tell, once it has brought the catalog up to date."""
    from chockstone.cli.local.api_keys import (  # late: a database takes long to import
        CatalogOutOfReach,
        users_with_keys,
    )

    try:
        return users_with_keys(settings, wait_seconds=_DATABASE_SECONDS)
    except CatalogOutOfReach as error:
        raise SettingsError(f"the keys in the catalog cannot be read: {error}") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. Of names, only ``localhost`` is taken on trust."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _check_model(model: ModelSetting) -> None:
    if model.is_on_hub:
        return  # looked for once the data directory and the port are ours: a download may take long
    try:
        read_config(model.directory)
    except ValueError as error:
        if model.may_be_on_hub and not model.directory.is_dir():
            raise SettingsError(
                f"cannot serve the model {model.name!r}: {error}. The directory {str(model.directory.parent)!r} "
                "exists, so the name is a path, and no hub is asked. Mount or create the directory, say where it is "
                f"with --model {model.name}=DIRECTORY, or run `chockstone model pull {model.name}`, which downloads "
                "the model of that name from the hub and prints the --model to use"
            ) from None
        raise SettingsError(
            f"cannot serve the model {model.name!r}: {error}. Say where it is with --model {model.name}=DIRECTORY, "
            f"give its name on the Hugging Face hub as --model ORGANIZATION/NAME, or try a made one: {_MAKE_ONE}"
        ) from None
