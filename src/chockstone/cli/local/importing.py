"""Imports checkpoints of other programs into a store (``import``)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chockstone.checkpoints.errors import CheckpointError, ImportRefused
from chockstone.checkpoints.stores.store import Store
from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.formatting import format_count, format_size, printable, shorten
from chockstone.cli.output.terminal import bytes_bar, print_json, print_line, print_stderr, print_table
from chockstone.integrations.formats.importing import (
    ImportedCheckpoint,
    ImportPlace,
    leave_out,
    put_under,
    refuse_taken,
    store_foreign,
)
from chockstone.integrations.formats.reading.foreign_checkpoint import ForeignCheckpoint, FormatName
from chockstone.integrations.formats.reading.recognition import find_checkpoints, read_foreign

_NAME_WIDTH = 30  # characters of a file's name in the receipt


@dataclass(frozen=True, slots=True)
class ImportTask:
    """What the options of ``import`` ask for."""

    place: ImportPlace
    format: FormatName | None = None
    under: str | None = None
    without: tuple[str, ...] = ()
    dry_run: bool = False


def import_one(source: Path, store: Store, task: ImportTask, *, as_json: bool) -> None:
    """Import one checkpoint and print its receipt. Nothing is stored with ``dry_run``."""
    document = _import(source, store, task, show=not as_json)
    if as_json:
        print_json({"dry_run": task.dry_run, "checkpoints": [document]})


def import_all(directory: Path, store: Store, task: ImportTask, *, as_json: bool) -> int:
    """Import every checkpoint of a directory by rising step, and return the exit code. One failure stops no other."""
    sources = find_checkpoints(directory)
    if not sources:
        raise ImportRefused(f"{str(directory)!r} holds no checkpoints, such as checkpoint-500; check the path")
    documents: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    for source in sources:
        try:
            documents.append(_import(source, store, task, show=not as_json))
        except CheckpointError as error:
            print_stderr(f"chockstone: {source.name}: {error}")
            failed.append({"source": source.name, "error": str(error)})
    if as_json:
        print_json({"dry_run": task.dry_run, "checkpoints": documents, "failed": failed})
    else:
        done = "would be imported" if task.dry_run else "imported"
        print_line(f"{format_count(len(documents), 'checkpoint')} {done}, {len(failed)} failed")
    return ExitCode.FAILED if failed else ExitCode.OK


def _import(source: Path, store: Store, task: ImportTask, *, show: bool) -> dict[str, Any]:
    found = read_foreign(source, task.format)
    if task.without:
        found = leave_out(found, task.without)
    if task.under is not None:
        found = put_under(found, task.under)
    step = found.step if task.place.step is None else task.place.step
    name = task.place.full_name(source, step)
    refuse_taken(store, name)
    if show:
        _print_parts(source, found)
    stored = None if task.dry_run else _store(found, source, store, task.place)
    if show:
        _print_end(found, name, store, stored, step=step, is_given=task.place.step is not None)
    return {
        "source": str(source),
        "format": found.format,
        "recognised_by": found.evidence,
        "name": name,
        "step": step,
        "kind": task.place.kind,
        "taken": [part._asdict() for part in found.taken],
        "files": sorted(found.files),
        "left_out": [left._asdict() for left in found.left_out],
        "size_bytes": None if stored is None else stored.size_bytes,
    }


def _store(found: ForeignCheckpoint, source: Path, store: Store, place: ImportPlace) -> ImportedCheckpoint:
    """Write the archive with a progress bar, which starts when the size is known."""
    with ExitStack() as bars:
        bar: list[Callable[[int], None]] = []

        def start(size: int) -> None:
            bar.append(bars.enter_context(bytes_bar(source.name, size)))

        def advance(count: int) -> None:
            bar[0](count)

        return store_foreign(found, source, store, place, on_plan=start, on_bytes=advance)


def _print_parts(source: Path, found: ForeignCheckpoint) -> None:
    print_line(f"{printable(source.name)}: {found.format} ({printable(found.evidence)})")
    rows = [
        (_short(part.source), _short(part.key), f"{part.tensors:,}" if part.tensors else "-", _size(part.size_bytes))
        for part in found.taken
    ]
    rows += [(_short(name), "(file)", "-", "-") for name in sorted(found.files)]
    print_table(("FROM", "STORED AS", "TENSORS", "SIZE"), rows, right=("TENSORS", "SIZE"))
    if found.left_out:
        print_line()
        print_table(("LEFT OUT", "WHY"), [(_short(left.source), left.why) for left in found.left_out])
    print_line()


def _print_end(
    found: ForeignCheckpoint,
    name: str,
    store: Store,
    stored: ImportedCheckpoint | None,
    *,
    step: int | None,
    is_given: bool,
) -> None:
    origin = "--step" if is_given else found.step_source
    at = "no step" if step is None else f"step {step} (from {printable(origin)})"
    if stored is None:
        print_line(f"would be stored as {name} in {printable(store.url)}, {at}; nothing was written")
        return
    print_line(f"stored as {name} in {printable(store.url)}, {at}, {format_size(stored.size_bytes)}")


def _short(text: str) -> str:
    return shorten(printable(text), _NAME_WIDTH)


def _size(size_bytes: int) -> str:
    return format_size(size_bytes) if size_bytes else "-"
