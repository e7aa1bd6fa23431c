"""``chockstone train``: the command and its help. The work is in ``training``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperOption

from chockstone.cli.commands.options import KEY, Debug, Key
from chockstone.cli.output.exit_codes import EXIT_CODES
from chockstone.cli.output.reporting import finish, reporting
from chockstone.cli.settings.flags import GroupedCommand, with_flags
from chockstone.cli.training.options import TrainOptions
from chockstone.extras import PACKAGES, require


def _train(
    *,
    context: typer.Context,
    env: Annotated[
        str, typer.Option(metavar="SPEC", help="Environment: arithmetic, or your own as package.module:factory.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the run. The same directory resumes it.")
    ] = Path("chockstone-train"),
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|[NAME=]DIR",
            show_default="a new tiny model",
            help="Model that --server serves; without --server, a Hugging Face directory.",
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="TINKER_BASE_URL",
            show_default="start one",
            help="URL of the server to train on.",
        ),
    ] = None,
    key: Key = KEY,
    flags: Mapping[str, object],
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg",
            show_default=False,
            help="File for a plot of the rewards, in addition to OUT/rewards.svg.",
        ),
    ] = None,
    tensorboard: Annotated[
        bool | None,
        typer.Option(
            "--tensorboard/--no-tensorboard", show_default="if installed", help="Write TensorBoard event files."
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Train a model by reinforcement learning.

    Samples while it trains and while it saves. Needs only an environment: without --model it makes a tiny
    model, and without --server (or TINKER_BASE_URL) it starts a server of its own. The same command resumes a
    training that stopped or was killed; each sample is trained exactly once. Ctrl-C saves a checkpoint first;
    press Ctrl-C again to exit immediately.

    `--env arithmetic` has defaults of its own, with which the tiny model learns in minutes. Your own environment
    is a function or class that returns an object with problems and a reward: see
    `chockstone.trainers.Environment`. It is imported from the working directory or from installed packages.

    \b
    Examples:
      chockstone train --env arithmetic
      chockstone train --env arithmetic --out ./sync --staleness 0 --plot sync.svg
      chockstone train --env my_task:make --model ./models/qwen3-0.6b \\
          --steps 500 --save-every 25 --export hf
      chockstone train --env my_task:make --server http://gpu:8000 \\
          --model Qwen/Qwen3-8B --staleness 4
    """
    with reporting(as_json=False, debug=debug):
        _check(plot, server)
        if not server:
            os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before anyone reads it: nothing is downloaded
        from chockstone.cli.training.run import TrainRequest, run

        code = run(
            TrainRequest(
                environment=env,
                out=out,
                settings=_given(flags),
                model=model,
                server=server or None,
                key=key,
                plot=plot,
                tensorboard=tensorboard,
                debug=debug,
                command_for=lambda steps: repeated_command(context, steps),
            )
        )
    finish(code)


train = with_flags(_train, TrainOptions)
commands = typer.Typer(add_completion=False, rich_markup_mode=None)
commands.command("train", epilog=EXIT_CODES, cls=GroupedCommand)(train)


def _check(plot: Path | None, server: str | None) -> None:
    require("train", "`chockstone train`", packages=["tinker"])
    if not server:
        require("train", "`chockstone train` without --server", packages=PACKAGES["server"])
    if plot is not None and plot.suffix != ".svg":
        raise typer.BadParameter(f"the plot is drawn as SVG: {str(plot)!r} must end in '.svg'", param_hint="--plot")


def _given(flags: Mapping[str, object]) -> dict[str, object]:
    """The settings of the trainer that were given."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in flags.items() if value is not None
    }


def repeated_command(context: typer.Context, steps: int) -> str:
    """The command as it was given, but with so many steps. The key is left to the environment."""
    words = ["chockstone", "train"]
    for option in context.command.params:
        name = option.name or ""
        source = context.get_parameter_source(name)
        if not isinstance(option, TyperOption) or source is None or source.name != "COMMANDLINE":
            continue
        if name in ("steps", "key"):
            continue
        value = context.params[name]
        if isinstance(value, bool):
            words.append(option.opts[0] if value else option.secondary_opts[0])
            continue
        for each in value if isinstance(value, list) else [value]:
            words += [option.opts[0], str(each)]
    return shlex.join([*words, "--steps", str(steps)])
