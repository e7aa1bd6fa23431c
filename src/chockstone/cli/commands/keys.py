"""``chockstone keys``: create, list and revoke API keys."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chockstone.cli.commands.options import AsJson, Data, Database, Debug, parsed
from chockstone.cli.output.exit_codes import EXIT_CODES
from chockstone.cli.output.formatting import format_duration, format_time, printable
from chockstone.cli.output.reporting import reporting
from chockstone.cli.output.terminal import print_json, print_line, print_stderr, print_table
from chockstone.cli.settings.settings import Settings, SettingsError
from chockstone.extras import require

if TYPE_CHECKING:
    from chockstone.catalog.tables.users import KeyRow

commands = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, epilog=EXIT_CODES)


@commands.callback()
def keys() -> None:
    """Create, list and revoke API keys.

    Works on the catalog of the server: in the data directory, or at the URL of --database,
    CHOCKSTONE_DATABASE or chockstone.toml. The server may be running or stopped; a running server applies a
    change within a few seconds. Keys in the settings of the server (`serve --key`) are not listed here, and
    are valid in addition.

    The first key closes the server: requests without a valid key are refused from then on. Runs and
    checkpoints that were made before belong to the user `local`; `chockstone keys create local` keeps them
    accessible. The data directory records that keys are required, in its file `keys-required`: a server that
    has lost its keys does not start until there is a key again.

    \b
    Examples:
      chockstone keys create alice --note "laptop"
      chockstone keys ls --data /data/chockstone
      CHOCKSTONE_DATABASE=postgresql://chockstone@db/chockstone chockstone keys ls
    """


@commands.command(epilog=EXIT_CODES)
def create(
    user: Annotated[str, typer.Argument(metavar="USER", help="Owner of the key.")],
    note: Annotated[str, typer.Option(metavar="TEXT", help="Note to distinguish the keys of a user.")] = "",
    data: Data = None,
    database: Database = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Create an API key for a user, and print it once.

    The server stores only a digest of the key. A lost key cannot be printed again: revoke it and create another.
    A user may have several keys. Standard output is the key alone.

    \b
    Examples:
      chockstone keys create alice --note "laptop"
      export TINKER_API_KEY=$(chockstone keys create ci)
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.local.api_keys import create_key
        from chockstone.engine.ownership.api_keys import check_user

        parsed(check_user, user, "USER")
        row, key = create_key(_settings(data, database), user, note=note, now=datetime.now(UTC))
        if as_json:
            print_json({**_entry(row), "key": key})
            return
        print_line(key)
        print_stderr(
            f"key {row.key_id} of {user}, printed only this once; a running server accepts it within a few seconds"
        )


@commands.command(epilog=EXIT_CODES)
def ls(data: Data = None, database: Database = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List API keys by id, user and last characters.

    \b
    Example:
      chockstone keys ls --data /data/chockstone
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.local.api_keys import list_keys

        rows = list_keys(_settings(data, database))
        if as_json:
            print_json({"keys": [_entry(row) for row in rows]})
            return
        if not rows:
            print_line("no API keys; create one with `chockstone keys create USER`")
            return
        now = datetime.now(UTC)
        print_table(
            ("KEY ID", "USER", "KEY", "AGE", "STATE", "NOTE"),
            [
                (
                    str(row.key_id),
                    printable(row.user_id),
                    f"tml-…{row.hint}",
                    format_duration((now - row.created_at).total_seconds()),
                    "active" if row.revoked_at is None else f"revoked {format_time(row.revoked_at)}",
                    printable(row.note),
                )
                for row in rows
            ],
            right=("KEY ID", "AGE"),
        )


@commands.command(epilog=EXIT_CODES)
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="Number of the key, as `keys ls` prints it.")],
    data: Data = None,
    database: Database = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Revoke an API key for good.

    A running server refuses the key, and tokens that were issued for it, within a few seconds. Runs and
    checkpoints of the user stay. Revoking the last key does not open the server to requests without a key.

    \b
    Example:
      chockstone keys revoke 2 --data /data/chockstone
    """
    with reporting(as_json=as_json, debug=debug):
        from chockstone.cli.local.api_keys import revoke_key

        row = revoke_key(_settings(data, database), key_id, now=datetime.now(UTC))
        if as_json:
            print_json({"revoked": str(row.key_id), "user_id": row.user_id})
        else:
            print_line(f"revoked key {row.key_id} of {printable(row.user_id)}")


def _settings(data: str | None, database: str | None) -> Settings:
    require("server", "`chockstone keys`")
    from chockstone.cli.settings.sources import load_settings

    flags = {"data": data, "database": database}
    try:
        return load_settings(flags, environment=os.environ, working_directory=Path.cwd())
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None


def _entry(row: KeyRow) -> dict[str, Any]:
    return {
        "key_id": str(row.key_id),
        "user_id": row.user_id,
        "hint": row.hint,
        "note": row.note,
        "created_at": row.created_at,
        "revoked_at": row.revoked_at,
    }
