"""``chockstone doctor``: compares store and catalog, explains findings, and repairs them with --fix."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chockstone.cli.commands.options import AsJson, Data, Database, Debug
from chockstone.cli.output.confirmation import NOT_CONFIRMED
from chockstone.cli.output.exit_codes import EXIT_CODES, ExitCode
from chockstone.cli.output.reporting import CommandFailed, finish, reporting
from chockstone.extras import require

if TYPE_CHECKING:
    from chockstone.cli.settings.settings import Settings
    from chockstone.engine.doctor.repairs import AllowedRepairs
    from chockstone.engine.doctor.visit import Visit


commands = typer.Typer(add_completion=False, rich_markup_mode=None)


class DoctorFailed(CommandFailed):
    exit_code = ExitCode.UNREACHABLE


@commands.command(epilog=EXIT_CODES)
def doctor(
    data: Data = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", show_default="as the data directory records", help="Store: directory or s3://BUCKET/PREFIX."
        ),
    ] = None,
    database: Database = None,
    fix: Annotated[bool, typer.Option("--fix", help="Repair the findings. The server must be stopped.")] = False,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="Add archives without a row to the catalog; create the catalog if it is lost."),
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Read all bytes, and check all digests.")] = False,
    remove_damaged: Annotated[
        bool, typer.Option("--remove-damaged", help="With --fix: delete damaged checkpoints for good.")
    ] = False,
    remove_orphans: Annotated[
        bool, typer.Option("--remove-orphans", help="With --fix: delete archives that cannot be listed, for good.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the repairs and change nothing. The server may run.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation of the --remove options.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare store and catalog, explain findings, and repair them.

    Finds archives without rows, rows without archives, damaged archives, saves that never ended, deleted
    checkpoints whose bytes remain, wrong sizes and unfinished writes. Without --fix and --rebuild the command
    changes nothing, and a server may run at the same time.

    --fix adds archives without a row to the catalog, and marks damaged checkpoints and keeps their bytes. It
    deletes only data that cannot be loaded: rows without bytes, unfinished writes, and the weights of samplers
    whose session is over.

    --rebuild makes the catalog of checkpoints from the store alone, for a lost database. All checkpoints are
    listed and load again, private and without expiry: archives do not record these facts. Their sessions and
    runs are listed as ended. API keys and policies are not in archives, either: create keys with
    `chockstone keys create` before the server starts. A server that had keys does not start without keys.

    \b
    Examples:
      chockstone doctor
      chockstone doctor --data /data/chockstone --full
      chockstone doctor --fix --dry-run
      chockstone doctor --rebuild
      chockstone doctor --rebuild --data ./new --store s3://bucket/prefix
    """
    with reporting(as_json=as_json, debug=debug):
        require("server", "`chockstone doctor`")
        if (remove_damaged or remove_orphans) and not fix:
            flag = "--remove-damaged" if remove_damaged else "--remove-orphans"
            raise typer.BadParameter("this option belongs to a repair: add --fix", param_hint=flag)
        settings = _settings(data, store, database)
        allowed = None
        if fix or rebuild:
            from chockstone.engine.doctor.repairs import AllowedRepairs

            allowed = AllowedRepairs(
                may_repair=fix,
                may_create=rebuild,
                trash_seconds=settings.storage.trash,
                remove_damaged=remove_damaged,
                remove_orphans=remove_orphans,
            )
        if allowed is not None and not (dry_run or yes):
            _confirm(settings.data, allowed)
        finish(_examine(settings, allowed, is_full=full, dry_run=dry_run, as_json=as_json))


def _examine(settings: Settings, allowed: AllowedRepairs | None, *, is_full: bool, dry_run: bool, as_json: bool) -> int:
    """Examine and, unless ``allowed`` is None, repair. Prints the report and returns the exit code."""
    from chockstone.cli.local.doctor_report import report

    visit = asyncio.run(_visit(settings, None if dry_run else allowed, is_full=is_full))
    is_rebuild = allowed is not None and allowed.may_create
    was_lost = is_rebuild and (visit.made_catalog or not visit.has_catalog)
    return report(settings.data, visit, allowed, dry_run=dry_run, as_json=as_json, was_lost=was_lost)


async def _visit(settings: Settings, allowed: AllowedRepairs | None, *, is_full: bool) -> Visit:
    from chockstone.catalog import CatalogError, CatalogInUse
    from chockstone.cli.output.terminal import bytes_bar
    from chockstone.engine.doctor.visit import NoCatalog, look, repair
    from chockstone.engine.ownership.catalog_claim import CatalogRefused
    from chockstone.engine.ownership.data_directory import DirectoryInUse
    from chockstone.engine.ownership.store_claim import StoreRefused

    place, now = settings.data, datetime.now(UTC)
    elsewhere = {"store_url": settings.deployment.store, "database_url": settings.deployment.database}
    try:
        if allowed is None:
            return await look(place, now=now, is_full=is_full, progress=bytes_bar, **elsewhere)
        return await repair(place, allowed, now=now, is_full=is_full, progress=bytes_bar, **elsewhere)
    except (DirectoryInUse, CatalogInUse) as error:
        raise DoctorFailed(
            f"{error}: stop the server before a repair. Without --fix and --rebuild, or with --dry-run, the doctor may "
            "run beside a server"
        ) from error
    except (NoCatalog, StoreRefused, CatalogRefused) as error:
        raise DoctorFailed(str(error)) from error
    except CatalogError as error:
        advice = "\nIf the catalog is lost, move its file away: `chockstone doctor --rebuild` makes a new catalog."
        raise DoctorFailed(f"{error}{advice if settings.deployment.database is None else ''}") from error
    except OSError as error:
        raise DoctorFailed(f"the data directory {str(place)!r} cannot be used: {error.strerror or error}") from error


def _settings(data: str | None, store: str | None, database: str | None) -> Settings:
    from chockstone.cli.settings.settings import SettingsError
    from chockstone.cli.settings.sources import load_settings

    try:
        flags = {"data": data, "store": store, "database": database}
        settings = load_settings(flags, environment=os.environ, working_directory=Path.cwd())
    except SettingsError as error:
        raise CommandFailed(str(error)) from error
    if not settings.data.is_dir():
        raise CommandFailed(
            f"there is no data directory {str(settings.data)!r} ({settings.source_of('data')}); name one with --data"
        )
    return settings


def _confirm(place: Path, allowed: AllowedRepairs) -> None:
    removals = [
        words
        for is_wanted, words in (
            (allowed.remove_damaged, "damaged checkpoints"),
            (allowed.remove_orphans, "archives that cannot be listed"),
        )
        if is_wanted
    ]
    if not removals:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(NOT_CONFIRMED)
    typer.confirm(f"Delete {' and '.join(removals)} from {str(place)!r} for good?", err=True, abort=True)
