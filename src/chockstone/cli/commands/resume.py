"""``chockstone resume``: explains which checkpoint the next attempt would restore."""

from __future__ import annotations

from typing import Annotated

import typer

from chockstone.cli.commands.options import AsJson, Debug
from chockstone.cli.output.exit_codes import EXIT_CODES
from chockstone.cli.output.reporting import finish, reporting

commands = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES)


@commands.callback()
def resume() -> None:
    """Explain which checkpoint a training resumes from.

    \b
    Examples:
      chockstone resume explain s3://bucket/run-7
      chockstone resume explain ./run-7 --recorded
    """


@commands.command(epilog=EXIT_CODES)
def explain(
    uri: Annotated[
        str,
        typer.Argument(
            metavar="URI",
            help="Root of a Resume, place of one attempt, or directory of a Checkpointer: a directory or s3://…",
        ),
    ],
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Show the report that the last attempt recorded.")
    ] = False,
    identity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|KEY=VALUE",
            help="Identity of the run (repeatable).  [default: identity of the newest attempt]",
        ),
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option(metavar="URI", help="Root of another run to try last (repeatable).")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show which checkpoint the next attempt would restore, and why.

    Prints one line per place and generation, newest first, up to the one that would be restored; then the steps
    that would be lost, and the cost of the search. The command changes nothing. It reads the start and the end
    of each archive: "verified" means complete, committed and part of this run. A restore checks every byte.

    A directory of a Checkpointer is explained as well: the checkpoint that `Checkpointer.restore()` would
    restore. For a Flyte task, URI is the checkpoint path of an attempt; PATH.ckpt is beside it.

    \b
    Examples:
      chockstone resume explain s3://bucket/run-7
      chockstone resume explain ./run-7/attempt-00003 --json
      chockstone resume explain ./run-7 --recorded
      chockstone resume explain ./checkpoints
      chockstone resume explain s3://bucket/ge/r969-a0-0/_flytecheckpoints \\
          --identity project=vision --identity run=r969
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.local.resume_report import explain_now, show_recorded

        if recorded:
            if identity or source:
                raise typer.BadParameter("--recorded shows a recorded report; leave out --identity and --source")
            finish(show_recorded(uri, as_json=as_json))
        else:
            finish(explain_now(uri, identity=_identity(identity or []), sources=source or [], as_json=as_json))


def _identity(words: list[str]) -> str | dict[str, str] | None:
    """A name alone is what ``Resume(identity=…)`` takes; platforms have several keys."""
    if not words:
        return None
    if len(words) == 1 and "=" not in words[0]:
        return words[0]
    pairs = [word.partition("=") for word in words]
    if not all(key and equals for key, equals, _ in pairs):
        raise typer.BadParameter("write one name, or KEY=VALUE each time", param_hint="--identity")
    return {key: value for key, _, value in pairs}
