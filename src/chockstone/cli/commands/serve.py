"""``chockstone serve``: the command and its help. The flags come from the settings, the work is in ``serving``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import typer

from chockstone.cli.output.reporting import BAD_INPUT
from chockstone.cli.output.terminal import print_stderr
from chockstone.cli.settings.flags import GroupedCommand, with_flags
from chockstone.cli.settings.settings import Settings, SettingsError
from chockstone.extras import ExtraMissing, require

EPILOG: Final = "Exit codes: 0 stopped as asked; 1 the server failed; 2 usage, or settings no server can start with."


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

    Prints the two lines to paste where your script runs. A model is NAME=DIRECTORY; a DIRECTORY written
    with ./ or / is served under its last name; a NAME alone is also its directory. If there is no such
    directory, ORGANIZATION/NAME is looked for in the Hugging Face cache, and then downloaded from the hub.

    Each setting has a flag (--max-runs 8), an environment variable (CHOCKSTONE_MAX_RUNS=8) and a key in the
    file (max_runs = 8). A flag overrides the environment, and the environment overrides the file. Repeatable
    flags are plural there: CHOCKSTONE_MODELS=a=./a,b=./b, and tables [models] and [keys]. On loopback
    without API keys, any key that starts with tml- is accepted.

    \b
    Examples:
      chockstone model make ./tiny && chockstone serve --model tiny=./tiny
      chockstone serve --model Qwen/Qwen3-0.6B
      chockstone serve --model Qwen/Qwen3-8B=./models/tiny-qwen3 --port 9000 --data /data/chockstone
      chockstone serve --model tiny=./tiny --keep-last 3 --keep-best loss:min --user-quota 50GiB --trash 7d
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
        raise typer.Exit(BAD_INPUT) from None
    raise typer.Exit(run_server(settings))


serve = with_flags(_serve, Settings)
commands = typer.Typer(add_completion=False, rich_markup_mode=None)
commands.command("serve", epilog=EPILOG, cls=GroupedCommand)(serve)
