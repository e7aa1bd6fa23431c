"""``chockstone serve``: the flags, what it says when it is up, and nothing of how it serves."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import chockstone
from chockstone.backends.importing import quick_imports
from chockstone.cli.output.formatting import printable, write_best, write_duration, write_size
from chockstone.cli.output.reporting import BAD_INPUT
from chockstone.cli.output.terminal import complain, print_line
from chockstone.cli.settings.settings import (
    BackendKind,
    Device,
    DownloadsKind,
    Dtype,
    JournalMode,
    LimitSettings,
    LogLevel,
    OnJournalLoss,
    RecoverySettings,
    SamplerKind,
    Settings,
    SettingsError,
)
from chockstone.cli.settings.settings import StorageSettings as StorageSettings

if TYPE_CHECKING:
    from chockstone.api.config import ServerConfig
    from chockstone.engine.config import StorageRules

FAILED = 1
EPILOG = "Exit codes: 0 stopped as asked; 1 the server failed; 2 usage, or settings no server can start with."
_LIMITS = LimitSettings()  # for the defaults that the help shows
_SURVIVAL = RecoverySettings()
_JOURNALS: Mapping[JournalMode, str] = {
    "off": "journal: off; runs end with this process, or with its worker",
    "on": "journal: on; runs survive the death of this process and of its worker",
    "synced": "journal: synced; runs survive the death of this process, of its worker and of the machine",
}


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=DIRECTORY]", help="A model to serve, from its Hugging Face directory; repeatable."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", show_default="127.0.0.1", help="Where to listen. Any but loopback needs keys."),
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="N", show_default="8000", help="0 picks a free one.")] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DIRECTORY", show_default="./chockstone-data", help="All that the server keeps is here."),
    ] = None,
    device: Annotated[
        Device | None, typer.Option(show_default="auto", help="Where models live; auto is CUDA where there is one.")
    ] = None,
    dtype: Annotated[
        Dtype | None, typer.Option(show_default="auto", help="Of the weights; auto is float32 on a CPU.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", show_default="0", help="For arithmetic; 0 takes every core.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="USER=tml-…", help="Who may ask; repeatable. A file or the environment hides it better."),
    ] = None,
    max_body_bytes: Annotated[
        int | None, typer.Option(metavar="N", show_default=str(_LIMITS.max_body_bytes), help="Of one request.")
    ] = None,
    max_queued_operations: Annotated[
        int | None,
        typer.Option(metavar="N", show_default=str(_LIMITS.max_queued_operations), help="Waiting in one run."),
    ] = None,
    max_queued_samples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default=str(_LIMITS.max_queued_samples),
            help="Sample requests queued in all; one user, 3/4.",
        ),
    ] = None,
    max_runs: Annotated[
        int | None, typer.Option(metavar="N", show_default=str(_LIMITS.max_runs), help="In training at once.")
    ] = None,
    max_sequences: Annotated[
        int | None, typer.Option(metavar="N", show_default=str(_LIMITS.max_sequences), help="Sampled at once.")
    ] = None,
    tokens_per_micro_batch: Annotated[
        int | None, typer.Option(metavar="N", show_default="what suits the device", help="Bounds memory.")
    ] = None,
    keep_last: Annotated[
        str | None, typer.Option(metavar="K", show_default="all", help="Keep each run's newest K checkpoints.")
    ] = None,
    keep_every: Annotated[
        str | None, typer.Option(metavar="N", show_default="all", help="Keep those whose step is divisible by N.")
    ] = None,
    keep_best: Annotated[
        str | None,
        typer.Option(metavar="METRIC[:min|max[:COUNT]]", show_default="all", help="Keep the best by their metadata."),
    ] = None,
    checkpoint_ttl: Annotated[
        str | None, typer.Option(metavar="AGE", show_default="off", help="Remove what is older: 12h, 7d, 2w.")
    ] = None,
    user_quota: Annotated[
        str | None, typer.Option(metavar="SIZE", show_default="off", help="All checkpoints of a user: 500MB, 50GiB.")
    ] = None,
    run_quota: Annotated[
        str | None, typer.Option(metavar="SIZE", show_default="off", help="All checkpoints of a run.")
    ] = None,
    disk_reserve: Annotated[
        str | None, typer.Option(metavar="SIZE", show_default="1GiB", help="Of the disk, never written into.")
    ] = None,
    trash: Annotated[
        str | None, typer.Option(metavar="AGE", show_default="off", help="How long what was removed can be restored.")
    ] = None,
    sweep_interval: Annotated[
        str | None, typer.Option(metavar="TIME", show_default="60s", help="Between looks for what has to go.")
    ] = None,
    scrub_rate: Annotated[
        str | None, typer.Option(metavar="SIZE", show_default="16MiB", help="Read again per second, to check; or off.")
    ] = None,
    scrub_every: Annotated[
        str | None, typer.Option(metavar="TIME", show_default="7d", help="Check each checkpoint at most this often.")
    ] = None,
    journal: Annotated[
        JournalMode | None,
        typer.Option(show_default="on", help="What runs survive: on, killed processes; synced, power loss too."),
    ] = None,
    on_journal_loss: Annotated[
        OnJournalLoss | None,
        typer.Option(
            show_default="fail",
            help="A run whose journal lost acknowledged operations: fail it, or continue it without them.",
        ),
    ] = None,
    recovery_steps: Annotated[
        int | None,
        typer.Option(metavar="N", show_default=str(_SURVIVAL.recovery_steps), help="Between recovery archives."),
    ] = None,
    recovery_replay: Annotated[
        str | None, typer.Option(metavar="TIME", show_default="30s", help="What a recovery may have to do over.")
    ] = None,
    park_after: Annotated[
        str | None,
        typer.Option(metavar="TIME", show_default="30m", help="Of silence: runs move to disk."),
    ] = None,
    forget_after: Annotated[
        str | None, typer.Option(metavar="TIME", show_default="30d", help="Of silence: a session is over.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL", show_default="SQLite, in the data", help="The catalog, as postgresql://USER@HOST/NAME."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", show_default="in the data", help="Checkpoints: a directory or s3://BUCKET/PREFIX."),
    ] = None,
    downloads: Annotated[
        DownloadsKind | None,
        typer.Option(show_default="redirect", help="Archives in a bucket: send clients there, or relay them."),
    ] = None,
    backend: Annotated[
        BackendKind | None,
        typer.Option(show_default="local", help="Who computes: one process, or Ray workers that share each model."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", show_default="1", help="Of Ray; each holds a part of every model.")
    ] = None,
    min_workers: Annotated[
        int | None,
        typer.Option(metavar="N", show_default="no fewer", help="Go on with so few when some are lost."),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", show_default="one of its own", help="Of the Ray cluster to join; or auto."),
    ] = None,
    sampler: Annotated[
        SamplerKind | None, typer.Option(show_default="local", help="Who generates: this server, or vLLM.")
    ] = None,
    vllm_url: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="A vLLM server with --enable-lora; repeatable.")
    ] = None,
    vllm_adapters: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY", show_default="in the data", help="Where vLLM finds adapters; same path there."
        ),
    ] = None,
    vllm_loras: Annotated[
        int | None,
        typer.Option(metavar="N", show_default="8", help="Adapters that each vLLM server holds: its --max-cpu-loras."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Be one more API process of the server there. Needs the same --database."),
    ] = None,
    admin: Annotated[
        list[str] | None, typer.Option(metavar="USER", help="Who may see and change what is everyone's; repeatable.")
    ] = None,
    public_url: Annotated[
        str | None, typer.Option(metavar="URL", show_default="as asked", help="How clients get here through a proxy.")
    ] = None,
    log_level: Annotated[LogLevel | None, typer.Option(show_default="info", help="From which on to log.")] = None,
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", show_default="./chockstone.toml, if there is one", help="Settings in TOML."),
    ] = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print each setting and where it came from, and start nothing.")
    ] = False,
) -> None:
    """Serve models for training and sampling to the Tinker SDK.

    Prints the two lines to paste where your script runs. A model is NAME=DIRECTORY; a DIRECTORY written
    with ./ or / serves under its last name; a NAME alone is also its directory. Nothing is downloaded.

    Each setting may also be CHOCKSTONE_ and its name (CHOCKSTONE_PORT, CHOCKSTONE_MODELS=a=./a,b=./b,
    CHOCKSTONE_KEYS), or a line in the file (port=8000; tables [models] and [keys]). A flag wins over the
    environment, that over the file. On loopback without keys, any key that starts with tml- will do.

    \b
    Examples:
      chockstone model make ./tiny && chockstone serve --model tiny=./tiny
      chockstone serve --model Qwen/Qwen3-8B=./models/tiny-qwen3 --port 9000 --data /data/chockstone
      chockstone serve --model tiny=./tiny --keep-last 3 --keep-best loss:min --user-quota 50GiB --trash 7d
      chockstone serve --host 0.0.0.0 --config /etc/chockstone.toml --show-config
    """
    flags = {
        "models": model or None,
        "host": host,
        "port": port,
        "data": data,
        "device": device,
        "dtype": dtype,
        "threads": threads,
        "log_level": log_level,
        "keys": key or None,
        "max_body_bytes": max_body_bytes,
        "max_queued_operations": max_queued_operations,
        "max_queued_samples": max_queued_samples,
        "max_runs": max_runs,
        "max_sequences": max_sequences,
        "tokens_per_micro_batch": tokens_per_micro_batch,
        "keep_last": keep_last,
        "keep_every": keep_every,
        "keep_best": keep_best,
        "checkpoint_ttl": checkpoint_ttl,
        "user_quota": user_quota,
        "run_quota": run_quota,
        "disk_reserve": disk_reserve,
        "trash": trash,
        "sweep_interval": sweep_interval,
        "scrub_rate": scrub_rate,
        "scrub_every": scrub_every,
        "journal": journal,
        "on_journal_loss": on_journal_loss,
        "recovery_steps": recovery_steps,
        "recovery_replay": recovery_replay,
        "park_after": park_after,
        "forget_after": forget_after,
        "database": database,
        "store": store,
        "downloads": downloads,
        "backend": backend,
        "workers": workers,
        "min_workers": min_workers,
        "ray_address": ray_address,
        "sampler": sampler,
        "vllm_urls": vllm_url or None,
        "vllm_adapters": vllm_adapters,
        "vllm_loras": vllm_loras,
        "engine": engine,
        "admins": admin or None,
        "public_url": public_url,
    }
    try:
        settings = _settle(flags, config, show=show_config)
    except SettingsError as error:
        complain(f"chockstone: {error}")
        raise typer.Exit(BAD_INPUT) from None
    if show_config:
        return
    with quick_imports():
        from chockstone.api.serving.preparing import CannotStart, prepared

    def announce(bound_port: int, users: Sequence[str]) -> None:
        print_banner(settings, bound_port, users=users)

    try:
        config_of_server = _server_config(settings)
        if settings.scale.engine is not None:
            raise typer.Exit(_serve_front(settings, config_of_server, settings.scale.engine))
        with prepared(config_of_server) as preparations:
            with quick_imports():
                from chockstone.api.serving.server import run

            code = run(config_of_server, preparations, announce=announce)
    except CannotStart as error:
        complain(f"chockstone: {error}")
        raise typer.Exit(FAILED) from None
    raise typer.Exit(code)


def _serve_front(settings: Settings, config: ServerConfig, engine: str) -> int:
    try:
        from chockstone.api.replica.server import run
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        complain("chockstone: --engine needs the Python package 'aiohttp': pip install 'chockstone[front]'")
        return FAILED

    def announce(port: int, users: Sequence[str]) -> None:
        print_line(f"chockstone {chockstone.__version__} answers for {printable(engine)}", style="bold")
        _print_access(settings, port, users=users)

    return run(config, engine, announce=announce)


def _server_config(settings: Settings) -> ServerConfig:
    from chockstone.api.config import ServerConfig
    from chockstone.engine.config import Durability
    from chockstone.engine.config import EngineLimits as EngineLimits

    limits, survival, scale = settings.limits, settings.survival, settings.scale
    return ServerConfig(
        models={model.name: model.directory for model in settings.models},
        data=settings.data,
        host=settings.host,
        port=settings.port,
        keys=settings.keys,
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        max_body_bytes=limits.max_body_bytes,
        max_sequences=limits.max_sequences,
        tokens_per_micro_batch=limits.tokens_per_micro_batch,
        limits=EngineLimits(
            operations_per_run=limits.max_queued_operations,
            samples=limits.max_queued_samples,
            runs=limits.max_runs,
            park_seconds=survival.park_after,
            forget_seconds=survival.forget_after,
        ),
        durability=Durability(
            journal=survival.journal,
            steps=survival.recovery_steps,
            replay_seconds=survival.recovery_replay,
            on_journal_loss=survival.on_journal_loss,
        ),
        storage=_storage_rules(settings.storage),
        admins=settings.admins,
        public_url=settings.public_url,
        log_level=settings.log_level,
        database=scale.database,
        store=scale.store,
        downloads=scale.downloads,
        backend=scale.backend,
        workers=scale.workers,
        min_workers=scale.min_workers,
        ray_address=scale.ray_address,
        sampler=scale.sampler,
        vllm_urls=scale.vllm_urls,
        vllm_adapters=scale.vllm_adapters,
        vllm_loras=scale.vllm_loras,
        engine=scale.engine,
    )


def _storage_rules(storage: StorageSettings) -> StorageRules:
    from chockstone.checkpoints import Best, Retention
    from chockstone.engine.config import StorageRules

    retention = Retention(
        keep_last=storage.keep_last,
        keep_every=storage.keep_every,
        keep_best=None if storage.keep_best is None else Best(*storage.keep_best),
        ttl_seconds=storage.checkpoint_ttl,
    )
    return StorageRules(
        retention=retention,
        user_quota_bytes=storage.user_quota,
        run_quota_bytes=storage.run_quota,
        reserve_bytes=storage.disk_reserve,
        trash_seconds=storage.trash,
        sweep_seconds=storage.sweep_interval,
        scrub_bytes_per_second=storage.scrub_rate,
        scrub_every_seconds=storage.scrub_every,
    )


def print_banner(settings: Settings, port: int, *, users: Sequence[str]) -> None:
    """Say what is served and how to reach it. To be called when ``port`` is bound and answers.

    ``users`` have keys.
    """
    from chockstone.cli.models.directory import count_parameters, spell_parameters

    print_line(f"chockstone {chockstone.__version__} serves", style="bold")
    for model in settings.models:
        count = count_parameters(model.directory)
        size = "" if count is None else f", {spell_parameters(count)} parameters"
        print_line(f"  {model.name} from {printable(str(model.directory))}{size}")
    print_line(f"data in {printable(str(settings.data))}")
    if settings.scale.store is not None:
        print_line(f"checkpoints in {printable(settings.scale.store)}")
    print_line(_JOURNALS[settings.survival.journal])
    for line in _limits_of(settings.storage):
        print_line(line)
    _print_access(settings, port, users=users)


def _print_access(settings: Settings, port: int, *, users: Sequence[str]) -> None:
    print_line(f"users: {', '.join(users) or 'whoever is on this machine; no keys are configured'}")
    print_line()
    print_line(f"export TINKER_BASE_URL={settings.public_url or base_url(settings.host, port)}")
    print_line(f"export TINKER_API_KEY={'tml-...  # your own' if users else 'tml-local'}")
    print_line()
    sys.stdout.flush()  # a log file shows it at once, too


def _limits_of(storage: StorageSettings) -> Iterator[str]:
    kept = []
    if storage.keep_last is not None:
        kept.append(f"the newest {storage.keep_last}")
    if storage.keep_every is not None:
        kept.append(f"steps divisible by {storage.keep_every}")
    if storage.keep_best is not None:
        kept.append(f"the best by {printable(write_best(*storage.keep_best))}")
    if kept:
        yield f"checkpoints: of each run and kind {', '.join(kept)} are kept"
    if storage.checkpoint_ttl is not None:
        yield f"checkpoints: removed {write_duration(storage.checkpoint_ttl)} after they were saved"
    quotas = (("user", storage.user_quota), ("run", storage.run_quota))
    limits = [f"{write_size(quota)} a {who}" for who, quota in quotas if quota is not None]
    if limits:
        yield f"checkpoints: at most {', '.join(limits)}"
    if storage.trash:
        yield f"trash: what is removed can be restored for {write_duration(storage.trash)}"


def base_url(host: str, port: int) -> str:
    """What a client on this machine calls the server."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:  # listens on every address; the shortest way is loopback
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://{host if address.version == 4 else f'[{host}]'}:{port}"


def _chosen_here() -> list[tuple[str, str, str]]:
    """What a worker on this machine decides for itself."""
    from chockstone.backends.supervision.instruction_sets import choose_here
    from chockstone.backends.worker.spinning import describe_waiting

    instructions = choose_here()
    return [
        ("instruction_sets", instructions.value, instructions.reason),
        ("openmp_waiting", *describe_waiting(os.environ)),
    ]


def _settle(flags: Mapping[str, object], config: str | None, *, show: bool) -> Settings:
    from chockstone.cli.settings.checks import check_settings
    from chockstone.cli.settings.sources import load_settings
    from chockstone.cli.settings.table import print_settings

    settings = load_settings(flags, config=config, environment=os.environ, working_directory=Path.cwd())
    if not show:
        check_settings(settings)
        return settings
    print_settings(settings, chosen=_chosen_here())
    try:
        check_settings(settings)
    except SettingsError as error:
        complain(f"chockstone: with these settings `serve` would not start: {error}")
    return settings
