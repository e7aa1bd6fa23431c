"""Sends found weights to a server, which commits them as a checkpoint, and prints the receipt."""

from __future__ import annotations

import http.client
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request

from chockstone.cli.importing.found_weights import FoundWeights, find_weights
from chockstone.cli.output.formatting import format_size, printable
from chockstone.cli.output.terminal import bytes_bar, print_json, print_line, print_table
from chockstone.cli.remote.client import (
    LONG_SECONDS,
    Json,
    Server,
    ServerRefused,
    ServerUnreachable,
    opener_for,
    read_refusal,
)
from chockstone.integrations.formats.reading.mapped_files import MappedFile

_PIECE_BYTES: Final = 1 << 20
_SHOWN_LAYERS: Final = 3


def import_weights(
    server: Server,
    source: Path,
    *,
    base_model: str,
    name: str | None,
    project_id: str | None,
    alpha: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Nothing is left on the server if this raises, but for files that it deletes by itself."""
    with tempfile.TemporaryDirectory(prefix="chockstone-import-") as work:
        found = find_weights(source, Path(work), alpha=alpha)
        if not as_json:
            _print_found(source, found)
        sent = None if dry_run else _send(server, found, base_model=base_model, name=name, project_id=project_id)
    if as_json:
        print_json(_document(source, found) | {"dry_run": dry_run, **({} if sent is None else sent)})
    elif sent is None:
        print_line("nothing was sent")
    else:
        _print_receipt(sent)


def _send(server: Server, found: FoundWeights, *, base_model: str, name: str | None, project_id: str | None) -> Json:
    given = {"destination_project_id": project_id, "name": name}
    started = server.post(
        "external_weights_upload_start",
        {
            "base_model": base_model,
            "lora_config": {"rank": found.rank, **found.trains},
            **{key: value for key, value in given.items() if value is not None},
        },
    )
    urls = started["urls"]
    if missing := sorted(urls.keys() ^ found.files.keys()):
        raise ServerUnreachable(f"the server at {server.url} and this program disagree about the file {missing[0]!r}")
    for file_name, file in found.files.items():
        _put(urls[file_name], file)
    found.check()
    finished = server.post("external_weights_upload_finish", {"upload_id": started["upload_id"]}, seconds=LONG_SECONDS)
    return {"tinker_path": finished["tinker_path"], "receipt": finished.get("receipt")}


def _put(url: str, file: MappedFile) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ServerUnreachable(f"the server returned the upload URL {url!r:.80}, which is not http or https")
    headers = {"Content-Length": str(file.size), "Content-Type": "application/octet-stream"}
    with bytes_bar(file.name, file.size) as advance:
        request = Request(url, _Body(file, advance), headers, method="PUT")  # noqa: S310  # http only
        try:
            opener_for(parts.hostname).open(request, timeout=LONG_SECONDS).close()
        except HTTPError as error:
            with error:
                detail, _ = read_refusal(error)
            if error.code < 500:
                raise ServerRefused(detail or f"{file.name!r} was refused with status {error.code}") from None
            raise ServerUnreachable(f"the server failed on {file.name!r}: {detail or error.reason}") from None
        except (URLError, OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise ServerUnreachable(f"{file.name!r} could not be sent: {reason}. Import it again") from None


class _Body:
    """The bytes of a file as a body, with progress."""

    def __init__(self, file: MappedFile, on_bytes: Callable[[int], None]) -> None:
        self._file = file
        self._on_bytes = on_bytes
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(self._position, _PIECE_BYTES if size < 0 else max(size, _PIECE_BYTES))
        self._position += len(piece)
        self._on_bytes(len(piece))
        return piece


def _document(source: Path, found: FoundWeights) -> dict[str, Any]:  # Any: plain JSON
    return {
        "source": str(source),
        "format": found.format,
        "rank": found.rank,
        **found.trains,
        "files": {name: file.size for name, file in found.files.items()},
        "left_out": [{"source": name, "why": why} for name, why in found.left_out],
    }


def _print_found(source: Path, found: FoundWeights) -> None:
    parts = ", ".join(part.removeprefix("train_") for part, is_there in found.trains.items() if is_there)
    what = f"LoRA adapter of rank {found.rank} ({parts})" if found.rank else "all weights of a model"
    print_line(f"{printable(source.name)}: {found.format}, {what}")
    print_table(
        ("FILE", "SIZE"), [(name, format_size(file.size)) for name, file in found.files.items()], right=("SIZE",)
    )
    for name, why in found.left_out:
        print_line(f"left out: {printable(name)} ({why})")


def _print_receipt(sent: Json) -> None:
    receipt = sent["receipt"] or {}
    factor, untrained = receipt.get("lora_B_multiplied_by", 1.0), receipt.get("untrained_layers", [])
    if factor != 1.0:
        print_line(f"lora_B was multiplied by {factor:g}: runs scale adapters by 32 / rank")
    if untrained:
        shown = ", ".join(map(printable, untrained[:_SHOWN_LAYERS]))
        print_line(f"{len(untrained)} layers are not in the adapter, and start untrained: {shown}")
    if ignored := receipt.get("ignored_options"):
        print_line(f"options without effect: {', '.join(map(printable, ignored))}")
    if lacks := receipt.get("lacks"):
        print_line(f"not in it: {printable(lacks)}")
    print_line(f"imported as {printable(sent['tinker_path'])}")
