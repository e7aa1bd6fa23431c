"""Starts a server, or an API replica of one, and runs it until it stops."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from chockstone.backends.importing import quick_imports
from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.terminal import print_stderr
from chockstone.cli.settings.settings import Settings, SettingsError

if TYPE_CHECKING:
    from chockstone.api.serving.server import MakeConsole


def run_server(settings: Settings) -> int:
    """Returns the exit code. Expects settings that were checked."""
    with quick_imports():
        from chockstone.api.serving.startup import CannotStart, claimed, prepared
        from chockstone.cli.models.hub import ModelNotFetched
        from chockstone.cli.serving.hub_models import fetch_models
        from chockstone.cli.serving.server_config import server_config

    def announce(port: int, users: Sequence[str]) -> None:
        from chockstone.cli.serving.banner import print_banner

        print_banner(replace(settings, models=models), port, users=users)

    models = settings.models
    try:
        if settings.deployment.engine is not None:
            return _run_replica(settings, settings.deployment.engine)
        with claimed(server_config(settings)) as claim:
            models = fetch_models(models)  # may take long, so it follows the checks that take no time
            config = server_config(replace(settings, models=models))
            with prepared(config, claim) as preparations:
                with quick_imports():
                    from chockstone.api.serving.server import run

                return run(config, preparations, announce=announce, make_console=_console(settings))
    except (CannotStart, ModelNotFetched) as error:
        for problem in str(error).splitlines():
            print_stderr(f"chockstone: {problem}")
        is_passing = isinstance(error, CannotStart) or error.may_pass
        return ExitCode.FAILED if is_passing else ExitCode.USAGE


def _console(settings: Settings) -> MakeConsole | None:
    if not settings.console:
        return None
    with quick_imports():
        from chockstone.console.app import make_console
    return make_console


def _run_replica(settings: Settings, engine: str) -> int:
    from chockstone.api.replica.server import run
    from chockstone.cli.serving.banner import print_replica_banner
    from chockstone.cli.serving.server_config import server_config

    def announce(port: int, users: Sequence[str]) -> None:
        print_replica_banner(settings, engine, port, users=users)

    return run(server_config(settings), engine, announce=announce)


def checked_settings(flags: Mapping[str, object], config: str | None) -> Settings:
    """The settings of this process. Raises SettingsError where a server cannot start with them."""
    from chockstone.cli.serving.checks import check_settings

    settings = _load(flags, config)
    check_settings(settings)
    return settings


def show_settings(flags: Mapping[str, object], config: str | None) -> None:
    """Print the settings, even if a server cannot start with them. Raises SettingsError if they cannot be read."""
    from chockstone.cli.serving.checks import check_settings
    from chockstone.cli.settings.table import print_settings

    settings = _load(flags, config)
    print_settings(settings, chosen=_choices_of_the_worker(settings))
    try:
        check_settings(settings)
    except SettingsError as error:
        print_stderr(f"chockstone: with these settings `serve` would not start: {error}")


def _load(flags: Mapping[str, object], config: str | None) -> Settings:
    from chockstone.cli.settings.sources import load_settings

    return load_settings(flags, config=config, environment=os.environ, working_directory=Path.cwd())


def _choices_of_the_worker(settings: Settings) -> list[tuple[str, str, str]]:
    """Name, value and reason of what a worker on this machine decides by itself."""
    from chockstone.backends.supervision.instruction_sets import choose_here
    from chockstone.backends.supervision.thread_choice import choose_threads_here
    from chockstone.backends.worker.spinning import describe_waiting

    instructions = choose_here()
    threads = choose_threads_here(settings.threads, replicas=max(1, settings.deployment.replicas))
    return [
        ("threads_per_worker", str(threads.threads), threads.reason),
        ("instruction_sets", instructions.value, instructions.reason),
        ("openmp_waiting", *describe_waiting(os.environ)),
    ]
