"""Downloads: a stored archive, or one file in it, behind a signed URL that needs no credential.

The URL names one save, so it never reaches another checkpoint, not even one that later gets the same name. A
download that has begun continues with the same bytes, whatever is deleted or replaced meanwhile. The archive is
checked by its seal; the digests of its blocks are not, which ``verify`` does.

If the store is a bucket, whole archives come from there: the answer redirects to a URL that S3 accepts for some
minutes. A single file is a range of an archive, which such a URL cannot express, so this server sends it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from fastapi import HTTPException, Request, Response
from fastapi.responses import JSONResponse

from chockstone.api.context import Context, ContextDep
from chockstone.api.downloads.archive_response import ArchiveResponse
from chockstone.api.downloads.byte_ranges import ByteRange, RangeUnsatisfiable, asked_range, is_known
from chockstone.api.routes import Routes
from chockstone.api.signed_urls import ForeignToken
from chockstone.api.users import Caller
from chockstone.catalog import CheckpointRow, RowMissing
from chockstone.checkpoints import Archive
from chockstone.checkpoints.errors import CheckpointError, CheckpointMissing, DamagedArchive
from chockstone.checkpoints.format.tree import STATE
from chockstone.wire.failures import BadRequest, ServerFailure

routes = Routes(prefix="/downloads", tags=["downloads"])
_COMPLETE: Final = "checkpoint_complete"  # an empty marker file, which clients do not fetch
_TYPES: Final = {
    ".json": "application/json",
    ".md": "text/markdown; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
_TAR: Final = "application/x-tar"
_REDIRECT_SECONDS: Final = 900  # a redirected client comes at once; to resume later, it asks here again
_GONE: Final = "the checkpoint behind this URL was deleted, replaced or has expired"
_PATH: Final = "/{token}/{filename}"
_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {  # Any: as FastAPI has it
    200: {"content": {_TAR: {}, "application/octet-stream": {}}, "description": "All of it"},
    206: {"description": "The range that was asked for"},
    302: {"description": "The store sends it, from a URL that is good for some minutes"},
    304: {"description": "The client has it already"},
    403: {"description": "The URL is not one that this server signed, or the API key that asked for it was revoked"},
    404: {"description": "The checkpoint was deleted, replaced or has expired"},
    410: {"description": "The URL has expired"},
    416: {"description": "The range begins behind the end"},
}


def download_url(
    context: Context, request: Request, caller: Caller, row: CheckpointRow, member: str | None, expires_at: datetime
) -> str:
    """An absolute URL that needs no credential, valid until ``expires_at`` or until the caller's key is revoked.

    ``member`` None: the whole archive.
    """
    payload = {"save_id": row.save_id, "archive": _mark(row), "member": member}
    token = context.signed_urls.sign(caller, payload, expires_at=expires_at)
    base = context.config.public_url or str(request.base_url)
    return f"{base.rstrip('/')}/api/v1{routes.prefix}/{token}/{quote(_filename(row, member), safe='')}"


async def exported_files(context: Context, row: CheckpointRow) -> tuple[str, ...]:
    """The names of the archive's files that a client fetches."""
    archive = await _open(context, row)
    await _close(archive)
    return tuple(name for name in archive.members if name not in (_COMPLETE, STATE))


@routes.get(_PATH, response_class=Response, responses=_RESPONSES, summary="Download an archive or one of its files")
async def download(token: str, filename: str, request: Request, context: ContextDep) -> Response:
    """The archive or the file, or a range of it."""
    return await _answer(token, filename, request, context)


@routes.head(_PATH, include_in_schema=False)
async def describe_download(token: str, filename: str, request: Request, context: ContextDep) -> Response:
    return await _answer(token, filename, request, context)


async def _answer(token: str, filename: str, request: Request, context: Context) -> Response:
    signed = context.signed_urls.read(token, request)
    if "save_id" not in signed:
        raise ForeignToken  # signed for a trace
    row = await _published(context, signed["save_id"])
    if signed.get("archive") != _mark(row):
        raise RowMissing(_GONE)  # a rebuilt catalog numbers its saves anew
    member: str | None = signed["member"]
    if filename != _filename(row, member):
        raise RowMissing(f"the URL is not that of {filename[:300]!r}; ask for a new one")
    if member is None and (url := await _redirect_url(context, row, request, expires_at=signed["exp"])) is not None:
        return Response(status_code=302, headers={"Location": url, "Cache-Control": "no-store"})
    archive = await _open(context, row)
    try:
        place = _place(archive, row, member)
        etag = await asyncio.to_thread(_etag, archive, member)
        return await _piece(archive, place, request, headers=_headers(row, member, etag=etag))
    except BaseException:
        await _close(archive)
        raise


async def _redirect_url(context: Context, row: CheckpointRow, request: Request, *, expires_at: int) -> str | None:
    """A URL of the store for the archive, valid no longer than our own; None: this server sends it."""
    if context.config.downloads == "relay":
        return None
    seconds = min(_REDIRECT_SECONDS, expires_at - int(context.now().timestamp()))
    async with _readable(context, row):
        return await context.engine.storage.lend(
            row.archive,
            method=request.method,
            seconds=max(1, seconds),
            filename=_filename(row, None),
            content_type=_TAR,
            seal=row.seal,
        )


async def _piece(archive: Archive, place: ByteRange, request: Request, *, headers: dict[str, str]) -> Response:
    """The answer with the bytes at ``place``; it closes the archive."""
    etag = headers["ETag"]
    if is_known(request.headers, etag=etag):
        await _close(archive)
        return Response(status_code=304, headers=headers)
    try:
        asked = asked_range(request.headers, etag=etag, whole_bytes=place.size) if request.method == "GET" else None
    except RangeUnsatisfiable:
        await _close(archive)
        detail = f"the range {request.headers['range'][:100]!r} begins behind the end: there are {place.size} bytes"
        return JSONResponse({"detail": detail}, 416, {"Content-Range": f"bytes */{place.size}"})
    if asked is None:
        return ArchiveResponse(archive, place, status_code=200, headers=headers)
    partial = {**headers, "Content-Range": asked.content_range(place.size)}
    return ArchiveResponse(archive, ByteRange(place.start + asked.start, asked.size), status_code=206, headers=partial)


async def _published(context: Context, save_id: int) -> CheckpointRow:
    row = await context.catalog.checkpoints.get_save(save_id)
    if row is None or row.is_expired(context.now()):
        raise RowMissing(_GONE)
    if row.state == "damaged":
        raise BadRequest(f"checkpoint {row.path!r} is damaged: {row.damage}", code="damaged")
    return row


async def _open(context: Context, row: CheckpointRow) -> Archive:
    """The archive behind a row."""
    async with _readable(context, row):
        return await context.engine.storage.open(row.archive, seal=row.seal)


@asynccontextmanager
async def _readable(context: Context, row: CheckpointRow) -> AsyncIterator[None]:
    """Record a missing or damaged archive in the row's state, and raise a 4xx."""
    verifier = context.engine.verifier
    try:
        yield
    except CheckpointMissing:
        await _published(context, row.save_id)  # raises if it was deleted just now
        await verifier.found_missing(row)
        raise RowMissing(f"checkpoint {row.path!r} has lost its archive; load another one") from None
    except DamagedArchive as error:
        await verifier.found_damaged(row, str(error))
        raise BadRequest(f"checkpoint {row.path!r} is damaged: {error}", code="damaged") from error
    except CheckpointError as error:
        raise ServerFailure(f"the archive of checkpoint {row.path!r} cannot be read now: {error}") from error


async def _close(archive: Archive) -> None:
    """In a thread: closing a deleted file for the last time waits until its space is freed."""
    await asyncio.to_thread(archive.close)


def _place(archive: Archive, row: CheckpointRow, member: str | None) -> ByteRange:
    if member is None:
        return ByteRange(0, archive.size)
    if (found := archive.members.get(member)) is None:
        raise HTTPException(404, f"checkpoint {row.path!r} holds no file {member[:300]!r}")
    return ByteRange(found.offset, found.size)


def _headers(row: CheckpointRow, member: str | None, *, etag: str) -> dict[str, str]:
    filename = _filename(row, member)
    suffix = f".{filename.rpartition('.')[2]}"
    return {
        "Content-Type": _TAR if member is None else _TYPES.get(suffix, "application/octet-stream"),
        "Content-Disposition": f'attachment; filename="{filename}"',
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private",
        "X-Content-Type-Options": "nosniff",
    }


def _etag(archive: Archive, member: str | None) -> str:
    """COMMIT seals the manifest, which has the digests of all bytes: equal here means equal throughout."""
    commit = bytearray(archive.layout.commit.size)
    archive.read_into(archive.layout.commit.offset, memoryview(commit))
    return f'"{hashlib.sha256(commit + b"/" + (member or "").encode()).hexdigest()[:32]}"'


def _mark(row: CheckpointRow) -> str:
    """A digest of the archive's name, which no other archive ever gets."""
    return hashlib.sha256(row.archive.encode()).hexdigest()[:16]


def _filename(row: CheckpointRow, member: str | None) -> str:
    """Needs no quoting: names of checkpoints and of files in archives are plain."""
    return f"{row.name}.tar" if member is None else member.rpartition("/")[2]
