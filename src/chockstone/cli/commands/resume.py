"""``chockstone resume``: explains which checkpoint the next attempt would restore."""

from __future__ import annotations

from typing import Annotated

import typer

from chockstone.cli.commands.options import AsJson, Debug
from chockstone.cli.output.reporting import finish, reporting

EPILOG = (
    "Exit codes: 0 something would be restored, or nothing was ever saved there; 1 blocked or exhausted, it would "
    "refuse to start; 2 usage or bad input; 3 store not reachable or denied; 130 interrupted."
)

commands = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EPILOG)


@commands.callback()
def resume() -> None:
    """Explain what a training run resumes from when it starts again.

    \b
    Examples:
      chockstone resume explain s3://bucket/run-7
      chockstone resume explain ./run-7 --recorded
    """


@commands.command(epilog=EPILOG)
def explain(
    uri: Annotated[
        str,
        typer.Argument(metavar="URI", help="The root of a run, or the place of one attempt: a directory, s3://…"),
    ],
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Show what the last attempt wrote down when it resumed.")
    ] = False,
    identity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|KEY=VALUE",
            help="Whose checkpoints count; may be repeated.  [default: what the newest attempt says]",
        ),
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option(metavar="URI", help="Another run, tried last; may be repeated.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show what the next attempt would restore, and why.

    A line for each place and generation that is looked at, newest first, up to the one that would be taken; then
    the steps that are lost and what looking cost. Nothing is claimed, fenced or changed, and of each archive only
    start and end are read: "verified" means complete, committed and of this run. A restore checks every byte.

    Of a Flyte task, URI is the checkpoint path of an attempt, beside which PATH.ckpt stands.

    \b
    Examples:
      chockstone resume explain s3://bucket/run-7
      chockstone resume explain ./run-7/attempt-00003 --json
      chockstone resume explain ./run-7 --recorded
      chockstone resume explain s3://bucket/ge/r969-a0-0/_flytecheckpoints --identity project=vision --identity run=r969
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.local.resume_report import explain_now, show_recorded

        if recorded:
            if identity or source:
                raise typer.BadParameter("--recorded shows what was; leave out --identity and --source")
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
