"""``chockstone conversations``: what was stored of talks with models, to train on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from chockstone.cli.commands.options import KEY, SERVER, AsJson, Debug, Key, ServerUrl, Yes
from chockstone.cli.output.exit_codes import EXIT_CODES
from chockstone.cli.output.reporting import finish, reporting

commands = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES)

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the answer, as the client got it and `ls` prints it.")]
Choice = Annotated[
    int | None, typer.Option(min=0, help="Number of the choice, if the answer has several; the first is 0.")
]
OfModel = Annotated[str | None, typer.Option(metavar="NAME", help="Only those whose client named this model.")]


@commands.callback()
def conversations() -> None:
    """List, export, reward, correct and delete stored conversations.

    The server stores a conversation when a request asks for it with store, or when its model is an alias that was
    set with --store. Each answer is a conversation of its own; its prompt has the earlier turns.

    \b
    Examples:
      chockstone conversations ls
      chockstone conversations reward chatcmpl-ID 1.0
      chockstone conversations export datums.jsonl
    """


@commands.command(epilog=EXIT_CODES)
def ls(
    model: OfModel = None,
    rewarded: Annotated[
        bool | None,
        typer.Option("--rewarded/--unrewarded", help="Only those with a reward, or without.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of conversations.")] = 50,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Only those older than this one.")] = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List your stored conversations, newest first.

    \b
    Examples:
      chockstone conversations ls
      chockstone conversations ls --model prod --unrewarded
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.conversations import ListFilter, list_conversations

        chosen = ListFilter(model=model, rewarded=rewarded, before=before)
        list_conversations(connect(server, key), chosen, limit=limit, now=datetime.now(UTC), as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def show(
    conversation_id: Id,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show one conversation: messages, answers, rewards and corrections.

    `--json` prints the token ids and log-probabilities, too.

    \b
    Example:
      chockstone conversations show chatcmpl-ID
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.conversations import show_conversation

        show_conversation(connect(server, key), conversation_id, as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def export(
    target: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="New file of JSON lines; standard output if absent.")
    ] = None,
    loss_fn: Annotated[
        Literal["importance_sampling", "cross_entropy"],
        typer.Option("--loss-fn", help="Loss to make the datums for."),
    ] = "importance_sampling",
    after: Annotated[str | None, typer.Option(metavar="ID", help="Only conversations newer than this one.")] = None,
    model: OfModel = None,
    min_reward: Annotated[
        float | None, typer.Option(help="Leave out answers with a lower reward, or with none.")
    ] = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write your conversations as datums: a line of JSON for each answer.

    importance_sampling takes the answers with a reward, as they were sampled. cross_entropy takes all answers, and
    the correction where there is one. The field `datum` of a line is a Datum of the Tinker SDK.

    \b
    Examples:
      chockstone conversations export datums.jsonl
      chockstone conversations export --min-reward 0.5 > good.jsonl
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.conversations import export_datums

        query = {"loss_fn": loss_fn, "after": after, "model": model, "min_reward": min_reward}
        export_datums(connect(server, key), target, query, as_json=as_json)


@commands.command(epilog=EXIT_CODES, context_settings={"ignore_unknown_options": True})
def reward(
    conversation_id: Id,
    value: Annotated[str, typer.Argument(metavar="REWARD", help="A number, which may be negative, or `none`.")],
    choice: Choice = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Attach a reward to an answer, in place of an earlier one; `none` removes it.

    \b
    Examples:
      chockstone conversations reward chatcmpl-ID 1.0
      chockstone conversations reward chatcmpl-ID -0.5 --choice 2
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.commands.options import parsed
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.conversations import parse_reward, reward_answer

        number = parsed(parse_reward, value, "REWARD")
        reward_answer(connect(server, key), conversation_id, number, choice=choice, as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def correct(
    conversation_id: Id,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="The answer as it should have been.")] = None,
    tokens: Annotated[
        str | None, typer.Option(metavar="N,…", help="The same as token ids, separated by commas.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the correction.")] = False,
    choice: Choice = None,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Attach a correction to an answer, in place of an earlier one.

    \b
    Examples:
      chockstone conversations correct chatcmpl-ID --text "It is 4."
      chockstone conversations correct chatcmpl-ID --remove
    """
    with reporting(as_json=as_json, debug=debug):
        if [text is not None, tokens is not None, remove].count(True) != 1:
            raise typer.BadParameter("give one of --text, --tokens and --remove", param_hint="--text")
        from chockstone.cli.commands.options import parsed
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.conversations import correct_answer, parse_tokens

        given = None if tokens is None else parsed(parse_tokens, tokens, "--tokens")
        correct_answer(connect(server, key), conversation_id, text=text, tokens=given, choice=choice, as_json=as_json)


@commands.command(epilog=EXIT_CODES)
def rm(
    conversation_ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID…", help="Ids, as `ls` prints them.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all of yours, or all with --model.")] = False,
    model: OfModel = None,
    yes: Yes = False,
    server: ServerUrl = SERVER,
    key: Key = KEY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Delete conversations with their rewards and corrections, for good.

    \b
    Examples:
      chockstone conversations rm chatcmpl-ID
      chockstone conversations rm --all --model prod
    """
    with reporting(as_json=as_json, debug=debug):
        if bool(conversation_ids) == everything or (model is not None and not everything):
            raise typer.BadParameter("give ids, or --all, which may go with --model", param_hint="ID")
        from chockstone.cli.remote.client import connect
        from chockstone.cli.remote.serving.conversations import find_ids, remove_conversations

        asked = connect(server, key)
        chosen = find_ids(asked, model=model) if everything else list(dict.fromkeys(conversation_ids or []))
        finish(remove_conversations(asked, chosen, yes=yes, as_json=as_json))
