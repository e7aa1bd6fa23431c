"""``chockstone serve``: the command and its help. The flags come from the settings, the work is in ``serving``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from chockstone.cli.output.exit_codes import EXIT_CODES, ExitCode
from chockstone.cli.output.terminal import print_stderr
from chockstone.cli.settings.flags import GroupedCommand, with_flags
from chockstone.cli.settings.settings import Settings, SettingsError
from chockstone.extras import ExtraMissing, require


def _serve(
    *,
    flags: Mapping[str, object],
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="File with settings in TOML.  [default: ./chockstone.toml, if it exists]",
        ),
    ] = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print the value and the source of each setting, and exit.")
    ] = False,
) -> None:
    """Serve models for training and sampling to the Tinker SDK.

    Prints the two environment variables that clients need. A model is NAME=DIRECTORY. A DIRECTORY that is
    written with ./ or / is served under its last part. NAME alone means the directory ./NAME. If there is no such
    directory, the server looks for ORGANIZATION/NAME in the Hugging Face cache, and then downloads it from the hub.
    It does neither for ./ORGANIZATION/NAME, nor if a directory ORGANIZATION exists.

    Each setting has a flag (--max-runs 8), an environment variable (CHOCKSTONE_MAX_RUNS=8) and a key in the
    settings file (max_runs = 8). A flag overrides the variable, and the variable overrides the file. Repeatable
    flags have plural variables and keys: CHOCKSTONE_MODELS=a=./a,b=./b, and tables [models] and [keys].

    On loopback without API keys, the server accepts any key that starts with tml-.

    \b
    Examples:
      chockstone model make ./tiny && chockstone serve --model tiny=./tiny
      chockstone serve --model Qwen/Qwen3-0.6B
      chockstone serve --model Qwen/Qwen3-8B=./models/qwen3 --port 9000
      chockstone serve --model tiny=./tiny --keep-last 3 --trash 7d
      chockstone serve --host 0.0.0.0 --config /etc/chockstone.toml --show-config
    """
    try:
        require("server", "`chockstone serve`")
        from chockstone.cli.serving.launch import checked_settings, run_server, show_settings

        if show_config:
            show_settings(flags, config)
            return
        settings = checked_settings(flags, config)
    except (SettingsError, ExtraMissing) as error:
        print_stderr(f"chockstone: {error}")
        raise typer.Exit(ExitCode.USAGE) from None
    raise typer.Exit(run_server(settings))


serve = with_flags(_serve, Settings)
commands = typer.Typer(add_completion=False, rich_markup_mode=None)
commands.command("serve", epilog=EXIT_CODES, cls=GroupedCommand)(serve)
